"""Requests and replies: the fields and tensors of an envelope.

Tensors are sent as safetensors bytes, as in the wire engine: exact, and readable without pickle.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from pfedseq.deployment.envelope import Envelope
from pfedseq.engines.wire import decode, encode
from pfedseq.errors import InputError
from pfedseq.federation import Reply, Tensors
from pfedseq.words import printable


@dataclass(frozen=True)
class Request:
    """Everything a site needs to answer, since its process may not outlive a message."""

    run: str
    """The permanent name of the run, which it keeps when it is resumed."""
    method: str
    step: str
    round: int
    exchange: int
    """The number of the exchange in the round; the same in a repeated message, and in a round that
    the server runs again."""
    client: int
    """The site's number in this run."""
    kept: int
    """The server may return to the end of this round, so the memory at that point is kept."""
    config: str
    """The resolved config, as TOML."""
    classes: tuple[str, ...]
    """The federation's classes, in the order of the logits; empty before they are agreed on."""
    remembered: str = ""
    """The stamp of the memory that the site should have; empty where none is known."""
    evaluated: int = 0
    """The round as whose result the tensors are evaluated before `step`; 0: none."""

    def envelope(self, down: Tensors) -> Envelope:
        """Pack the request with the server's tensors."""
        return Envelope(asdict(self) | {"classes": list(self.classes)}, encode(down))

    @classmethod
    def of(cls, envelope: Envelope) -> Request:
        """The request in an envelope; refuses anything else."""
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
    """A site's identification."""

    name: str
    folder: str
    """Drawn once per folder, to distinguish a restarted site from another of the same name."""
    backbone: str
    """Checksum of the frozen weights; set in the answer to `hello`."""
    version: str
    """The site's version of pfedseq."""
    memory: str = ""
    """The stamp of the client's memory, if it changed."""

    def envelope(self, reply: Reply) -> Envelope:
        """Pack the card with the client's reply."""
        return Envelope(asdict(self), encode(reply.tensors, reply.metrics))


def read_reply(envelope: Envelope, device: torch.device | None) -> tuple[Reply, Card]:
    """The inverse of `Card.envelope`."""
    try:
        card = Card(**envelope.fields)
    except TypeError as problem:
        raise InputError(f"a site's reply is not readable: {problem}") from None
    for name, value in vars(card).items():
        if not isinstance(value, str) or value != printable(value):
            raise InputError(f"a site's reply is not readable: its {name} is not a short text")
    return decode(envelope.payload, device), card
