"""The server half of a method, and its view of the clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch

from pfedseq.federation.messages import Reply, Tensors
from pfedseq.federation.setup import Setup
from pfedseq.training.moments import Moments, shapes

LENGTHS_KEPT = 5
"""Updates of a client whose lengths a server remembers."""


class Clients(Protocol):
    """The clients as the server sees them; each engine implements this once."""

    @property
    def ids(self) -> Sequence[int]:
        """Numbers of all clients of the engine."""

    def members(self, t: int, before: Sequence[int]) -> Sequence[int]:
        """The members from round t on: those of `before` that remain, and newcomers."""

    def participants(self, t: int) -> Sequence[int]:
        """The clients that are asked to train in round t."""

    def call(self, step: str, t: int, down: Mapping[int, Tensors]) -> dict[int, Reply]:
        """Run method `step` of each addressed client in round t; replies by client.

        A client that did not answer is missing from the result.
        """


@runtime_checkable
class TrainsAhead(Protocol):
    """An engine whose clients can be evaluated and start the next round in one exchange."""

    def announce_training(self, t: int, down: Mapping[int, Tensors]) -> None:
        """Round t opens with these messages, which hold what is evaluated next.

        The engine may send them with that evaluation. It must give the replies only to the call
        that asks for them, and ask anew if that call sends anything else.
        """


@runtime_checkable
class HearsOfRefusals(Protocol):
    """An engine that keeps a log of its clients."""

    def note_refusals(self, step: str, t: int, reasons: Mapping[int, str]) -> None:
        """These clients' replies to `step` have been screened and are not used."""


class Server(ABC):
    """The server half of a method: may own networks and optimizers; sees no data."""

    persistent: ClassVar[tuple[str, ...]] = ()
    """Attributes that make up the server's memory: tensors, modules or optimizers."""
    takes: ClassVar[tuple[str, ...]] = ()
    """The tensors of a reply to `train`, out of `adapter`, `delta` and `head`, shaped as φ^0's."""
    needs_everyone: ClassVar[str] = ""
    """The reason why clients cannot join or leave during a run; empty if they can."""

    def __init__(self, config: Any, setup: Setup) -> None:
        self.config, self.setup = config, setup
        self.figures: Mapping[str, Sequence[float]] = {}
        """Quantities of the last round for the log: numbers per layer, by name."""
        self.notes: Sequence[str] = ()
        """Messages for the user before round 1."""
        self.moments = Moments()
        """Averaged optimiser moments that clients start the next round with."""
        self.silent_rounds = torch.zeros(setup.num_clients, dtype=torch.int64)
        """Rounds since the client in each place last answered."""
        self.update_lengths = torch.zeros(setup.num_clients, LENGTHS_KEPT, dtype=torch.float64)
        """Lengths of the last updates of the client in each place, newest last; 0: none yet."""

    def reseat(self, kept: Sequence[int], newcomers: Mapping[int, int]) -> None:
        """Clients leave or join for good: keep the places `kept`, in that order, and append others.

        `newcomers` has |D_i| by client number. A server that stores more about its clients extends
        this method.
        """
        self.setup = self.setup.reseated(kept, newcomers)
        joined = torch.zeros(len(newcomers), dtype=torch.int64)
        self.silent_rounds = torch.cat([self.silent_rounds[list(kept)], joined])
        unknown = torch.zeros(len(newcomers), LENGTHS_KEPT, dtype=torch.float64)
        self.update_lengths = torch.cat([self.update_lengths[list(kept)], unknown])

    @abstractmethod
    def payload(self, i: int) -> Tensors:
        """The message for client i: evaluated now, and trained from in the next round."""

    @abstractmethod
    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """Process the replies of round t (counted from 1)."""

    def mean(self) -> Tensors | None:
        """The mean adapter, and the mean head if heads are shared.

        None if a method computes no mean, or if its personal models are the mean.
        """
        return None

    @property
    def opens_with_training(self) -> bool:
        """Whether a round starts with `train` from the payloads that were evaluated before it."""
        return type(self).run_round is Server.run_round

    def run_round(self, t: int, clients: Clients) -> None:
        """One round: send, train, update. Methods with more exchanges override it."""
        down = {i: self.payload(i) for i in clients.participants(t)}
        if replies := clients.call("train", t, down):
            self.update(t, replies)

    def expected(self, step: str) -> Tensors:
        """Templates of the tensors that a reply to `step` must have: names, shapes and types."""
        return {key: self.setup.like(key) for key in self.takes} if step == "train" else {}

    def expected_moments(self, step: str) -> Tensors:
        """Templates of the optimiser moments that come with a reply."""
        if step != "train" or self.config.optimizer_state != "average":
            return {}
        return shapes(self.expected(step))
