"""What passes between server and site: one request down, one reply up, as Flower's records.

Tensors travel as one block of safetensors bytes, the same as on the wire engine: exact, readable
without pickle, and cut into chunks by Flower where they are large.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from pfedseq.engines.wire import decode, encode
from pfedseq.errors import InputError
from pfedseq.federation import Reply, Tensors

_REQUEST, _CARD, _PAYLOAD, _BYTES = "request", "card", "payload", "safetensors"


@dataclass(frozen=True)
class Request:
    """All that a site must know to answer, since nothing of its process outlives a message."""

    run: str
    """Names the run for good: a run that is resumed has the name it began with."""
    method: str
    step: str
    round: int
    exchange: int
    """Which of the round's exchanges this is: repeated where a message is, and by a server that
    runs a round again."""
    client: int
    """The site's number in this run."""
    kept: int
    """The server may come back to the end of this round: the memory of then is still needed."""
    config: str
    """The resolved config, as TOML."""
    classes: tuple[str, ...]
    """The federation's classes, in the order of the logits; none before they are agreed on."""


@dataclass(frozen=True)
class Card:
    """Who a site says it is."""

    name: str
    folder: str
    """Drawn once for the site's folder: tells a restarted site from another of the same name."""
    backbone: str
    """Checksum of the frozen weights."""
    version: str
    """Of pfedseq."""


def pack_request(request: Request, down: Tensors) -> RecordDict:
    """As the content of a message."""
    fields = asdict(request) | {"classes": list(request.classes)}
    return RecordDict({_REQUEST: ConfigRecord(fields), _PAYLOAD: _packed(encode(down))})


def read_request(content: RecordDict) -> tuple[Request, bytes]:
    """What `pack_request` gave, the tensors still as bytes."""
    fields = _fields(content, _REQUEST)
    try:
        request = Request(**fields | {"classes": tuple(fields["classes"])})
    except (KeyError, TypeError) as problem:
        raise InputError(
            f"the server's message is not readable ({problem}): does it run the same pfedseq?"
        ) from None
    return request, _payload(content)


def pack_reply(reply: Reply, card: Card) -> RecordDict:
    """As the content of a message."""
    payload = encode(reply.tensors, reply.metrics)
    return RecordDict({_CARD: ConfigRecord(asdict(card)), _PAYLOAD: _packed(payload)})


def read_reply(content: RecordDict, device: torch.device | None) -> tuple[Reply, Card]:
    """What `pack_reply` gave."""
    try:
        card = Card(**_fields(content, _CARD))
    except TypeError as problem:
        raise InputError(f"a site's reply is not readable: {problem}") from None
    return decode(_payload(content), device), card


def _packed(payload: bytes) -> ArrayRecord:
    return ArrayRecord({_BYTES: Array("uint8", (len(payload),), _BYTES, payload)})


def _payload(content: RecordDict) -> bytes:
    try:
        payload: bytes = content.array_records[_PAYLOAD][_BYTES].data
    except KeyError:
        raise InputError("a message has no payload: does the other side run pfedseq?") from None
    return payload


def _fields(content: RecordDict, name: str) -> dict[str, Any]:
    if name not in content.config_records:
        raise InputError(f"a message has no {name}: does the other side run pfedseq?")
    return dict(content.config_records[name])
