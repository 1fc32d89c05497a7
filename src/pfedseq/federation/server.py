"""The server half of a method, and the clients as it sees them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

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
        """Those that have a place from round t on: of those with one `before`, and who has come."""

    def participants(self, t: int) -> Sequence[int]:
        """Those that are asked to train in round t."""

    def call(self, step: str, t: int, down: Mapping[int, Tensors]) -> dict[int, Reply]:
        """Run method `step` of each addressed client in round t; replies by client.

        A client that did not answer is missing from the result.
        """


class Server(ABC):
    """The server half of a method: may own networks and optimizers; sees no data."""

    persistent: ClassVar[tuple[str, ...]] = ()
    """Attributes that make up the server's memory: tensors, modules or optimizers."""
    takes: ClassVar[tuple[str, ...]] = ()
    """What a reply to `train` must hold, of `adapter`, `delta` and `head`, shaped as φ^0's."""
    needs_everyone: ClassVar[str] = ""
    """Why clients can neither join nor leave in the course of a run, where that is so."""

    def __init__(self, config: Any, setup: Setup) -> None:
        self.config, self.setup = config, setup
        self.figures: Mapping[str, Sequence[float]] = {}
        """What the server measured in the last round, for the log: names and numbers by layer."""
        self.notes: Sequence[str] = ()
        """What a person should know before round 1, in sentences."""
        self.moments = Moments()
        """What clients' optimisers begin the next round with, where that is averaged."""
        self.silent_rounds = torch.zeros(setup.num_clients, dtype=torch.int64)
        """By place, the rounds since its client was last heard of."""
        self.update_lengths = torch.zeros(setup.num_clients, LENGTHS_KEPT, dtype=torch.float64)
        """By place, the lengths of its client's last updates, the newest last; 0: none yet."""

    def reseat(self, kept: Sequence[int], newcomers: Mapping[int, int]) -> None:
        """Clients leave and join for good: keep the places `kept`, in that order, and add some.

        `newcomers` has |D_i| by the client's number. A server that remembers more of its clients
        than this extends it.
        """
        self.setup = self.setup.reseated(kept, newcomers)
        joined = torch.zeros(len(newcomers), dtype=torch.int64)
        self.silent_rounds = torch.cat([self.silent_rounds[list(kept)], joined])
        unknown = torch.zeros(len(newcomers), LENGTHS_KEPT, dtype=torch.float64)
        self.update_lengths = torch.cat([self.update_lengths[list(kept)], unknown])

    @abstractmethod
    def payload(self, i: int) -> Tensors:
        """What client i gets now: evaluated at once, trained from in the next round."""

    @abstractmethod
    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """Take in the replies of round t (counted from 1)."""

    def mean(self) -> Tensors | None:
        """The mean adapter, and the mean head if it is shared: what is personalised for a client.

        None where a method makes no mean, or its personal models are just that.
        """
        return None

    def run_round(self, t: int, clients: Clients) -> None:
        """One round: send, train, take in. Methods with more exchanges override it."""
        down = {i: self.payload(i) for i in clients.participants(t)}
        if replies := clients.call("train", t, down):
            self.update(t, replies)

    def expected(self, step: str) -> Tensors:
        """Tensors of the names, shapes and types that a reply to `step` must have."""
        return {key: self.setup.like(key) for key in self.takes} if step == "train" else {}

    def expected_moments(self, step: str) -> Tensors:
        """The same of the optimisers' moments that come with it."""
        if step != "train" or self.config.optimizer_state != "average":
            return {}
        return shapes(self.expected(step))
