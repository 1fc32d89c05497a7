"""Some fields and a block of bytes: what passes between server and site, and within a site.

Imported by every process that Flower starts for a message, so nothing here needs PyTorch.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from pfedseq.errors import InputError

_FIELDS, _PAYLOAD, _BYTES = "fields", "payload", "safetensors"
_LENGTH = 8
"""Bytes of a length on a socket."""


@dataclass(frozen=True)
class Envelope:
    """Named strings, numbers and lists of strings; and tensors as safetensors bytes."""

    fields: dict[str, Any]
    payload: bytes

    def to_records(self) -> RecordDict:
        """As the content of a Flower message, which cuts large payloads into chunks."""
        block = Array("uint8", (len(self.payload),), _BYTES, self.payload)
        return RecordDict(
            {_FIELDS: ConfigRecord(dict(self.fields)), _PAYLOAD: ArrayRecord({_BYTES: block})}
        )

    @classmethod
    def of_records(cls, content: RecordDict) -> Envelope:
        """What `to_records` gave."""
        try:
            fields = dict(content.config_records[_FIELDS])
            return cls(fields, content.array_records[_PAYLOAD][_BYTES].data)
        except KeyError as missing:
            raise InputError(
                f"a message has no {missing}: does the other side run the same pfedseq?"
            ) from None

    def send(self, connection: socket.socket) -> None:
        """Over a socket, each part after its length."""
        for part in (json.dumps(self.fields).encode(), self.payload):
            connection.sendall(len(part).to_bytes(_LENGTH, "big") + part)

    @classmethod
    def receive(cls, connection: socket.socket) -> Envelope:
        """What `send` sent; EOFError where the other side has gone."""
        with connection.makefile("rb") as stream:
            parts = []
            for _ in range(2):
                length = int.from_bytes(_whole(stream.read(_LENGTH), _LENGTH), "big")
                parts.append(_whole(stream.read(length), length))
        return cls(json.loads(parts[0]), parts[1])


def _whole(part: bytes, length: int) -> bytes:
    if len(part) < length:
        raise EOFError("the other side has gone")
    return part
