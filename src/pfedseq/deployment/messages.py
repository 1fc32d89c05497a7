"""What a request and a reply say: the fields and the tensors of an envelope.

Tensors travel as safetensors bytes, the same as on the wire engine: exact, and readable without
pickle.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from pfedseq.deployment.envelope import Envelope
from pfedseq.engines.wire import decode, encode
from pfedseq.errors import InputError
from pfedseq.federation import Reply, Tensors


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
    remembered: str = ""
    """The stamp of the memory that the site should have; empty where none is known."""
    evaluated: int = 0
    """The round as whose result the tensors are evaluated before `step`; 0: none."""

    def envelope(self, down: Tensors) -> Envelope:
        """Pack it with the tensors that the server sends."""
        return Envelope(asdict(self) | {"classes": list(self.classes)}, encode(down))

    @classmethod
    def of(cls, envelope: Envelope) -> Request:
        """What `envelope` holds; anything else is refused."""
        try:
            return cls(**envelope.fields | {"classes": tuple(envelope.fields["classes"])})
        except (KeyError, TypeError) as problem:
            raise InputError(
                f"the server's message is not readable ({problem}): does it run the same pfedseq?"
            ) from None


_EVALUATED = "evaluated/"
"""Begins the names of the metrics of an evaluation in a reply that holds another step as well."""


def joined(scores: Reply, trained: Reply | None) -> Reply:
    """One reply to both steps of a request that evaluates first; None: only that was done."""
    metrics = {_EVALUATED + name: value for name, value in scores.metrics.items()}
    if trained is None:
        return Reply(metrics=metrics)
    return Reply(trained.tensors, trained.metrics | metrics)


def parted(reply: Reply) -> tuple[Reply, Reply | None]:
    """What `joined` put together."""
    scores, metrics = {}, {}
    for name, value in reply.metrics.items():
        if name.startswith(_EVALUATED):
            scores[name.removeprefix(_EVALUATED)] = value
        else:
            metrics[name] = value
    return Reply(metrics=scores), Reply(reply.tensors, metrics) if metrics else None


@dataclass(frozen=True)
class Card:
    """Who a site says it is."""

    name: str
    folder: str
    """Drawn once for the site's folder: tells a restarted site from another of the same name."""
    backbone: str
    """Checksum of the frozen weights, where the site was asked who it is."""
    version: str
    """Of pfedseq."""
    memory: str = ""
    """The stamp of what the client remembers now, where that changed."""

    def envelope(self, reply: Reply) -> Envelope:
        """Pack it with the client's reply."""
        return Envelope(asdict(self), encode(reply.tensors, reply.metrics))


def read_reply(envelope: Envelope, device: torch.device | None) -> tuple[Reply, Card]:
    """Read what `Card.envelope` packed."""
    try:
        card = Card(**envelope.fields)
    except TypeError as problem:
        raise InputError(f"a site's reply is not readable: {problem}") from None
    return decode(envelope.payload, device), card
