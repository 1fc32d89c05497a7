"""The content of a message between server and site: fields and a block of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from pfedseq.errors import InputError

_FIELDS, _PAYLOAD, _BYTES = "fields", "payload", "safetensors"
SMALL = 4_000_000
"""Maximum bytes of a payload sent as a field: Flower makes one request per part of a message, and
an array has three."""


@dataclass(frozen=True)
class Envelope:
    """Named strings, numbers and lists of strings, and tensors as safetensors bytes."""

    fields: dict[str, Any]
    payload: bytes

    def to_records(self) -> RecordDict:
        """The content of a Flower message; Flower splits large payloads into chunks."""
        if len(self.payload) <= SMALL:
            return RecordDict({_FIELDS: ConfigRecord({**self.fields, _PAYLOAD: self.payload})})
        block = Array("uint8", (len(self.payload),), _BYTES, self.payload)
        return RecordDict(
            {_FIELDS: ConfigRecord(dict(self.fields)), _PAYLOAD: ArrayRecord({_BYTES: block})}
        )

    @classmethod
    def of_records(cls, content: RecordDict) -> Envelope:
        """The inverse of `to_records`."""
        try:
            fields = dict(content.config_records[_FIELDS])
            if isinstance(payload := fields.pop(_PAYLOAD, None), bytes):
                return cls(fields, payload)
            return cls(fields, content.array_records[_PAYLOAD][_BYTES].data)
        except KeyError as missing:
            raise InputError(
                f"a message has no {missing}: does the other side run the same pfedseq?"
            ) from None
