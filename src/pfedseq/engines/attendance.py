"""Clients that come and go, simulated: who is asked in a round, and who vanishes after that.

Every choice follows from the seed, the round and the client, never from what was asked before, so a
run that is continued meets the same absences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from pfedseq.engines.conditions import FederationConfig
from pfedseq.engines.passing import PassingClients
from pfedseq.federation import Client, Clients, Reply, Tensors
from pfedseq.seeding import torch_generator


class IntermittentClients(PassingClients):
    """The clients of an engine, of which only some are there."""

    def __init__(self, clients: Clients, config: FederationConfig, seed: int) -> None:
        super().__init__(clients)
        self.config, self.seed = config, seed

    def joined(self, t: int) -> Sequence[int]:
        """Those that have joined by round t and not left; at least one."""
        everyone = list(super().participants(t))
        late = gone = 0
        if t < self.config.late_round:
            late = round(self.config.late_clients * len(everyone))
        if t >= self.config.leaving_round:
            gone = round(self.config.leaving_clients * len(everyone))
        return everyone[gone : len(everyone) - late] or everyone[:1]

    def members(self, t: int, before: Sequence[int]) -> Sequence[int]:
        """Who has not left keeps its place; a newcomer gets one when it is first asked."""
        there = super().members(t, before)  # first of all: it may let in somebody new
        asked, joined = self.participants(t), self.joined(t)
        return [i for i in there if i in asked or (i in before and i in joined)]

    def participants(self, t: int) -> Sequence[int]:
        """A random share of those that have joined and not left; at least one."""
        asked = self.joined(t)
        if self.config.participation == 1:
            return asked
        count = max(1, round(self.config.participation * len(asked)))
        order = torch.randperm(len(asked), generator=torch_generator(self.seed, "participation", t))
        return sorted(asked[k] for k in order[:count].tolist())

    def call(self, step: str, t: int, down: Mapping[int, Tensors]) -> dict[int, Reply]:
        """Pass on what reaches a client that is still there; the others do nothing."""
        if step in Client.reading_steps:
            return super().call(step, t, down)
        there = {i: tensors for i, tensors in down.items() if not self.vanishes(t, i)}
        return super().call(step, t, there)

    def vanishes(self, t: int, i: int) -> bool:
        """Whether client i receives in round t and is not heard of until the next one."""
        if self.config.dropout == 0:
            return False
        draw = torch.rand((), generator=torch_generator(self.seed, "dropout", t, i))
        return bool(draw < self.config.dropout)
