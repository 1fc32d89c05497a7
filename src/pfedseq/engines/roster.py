"""The roster: members of a run, participants of a round, and silent clients.

An engine's clients are numbers that stay theirs for the whole run; a server knows places, the rows
of what it keeps. When a client leaves for good, its row is removed; a newcomer gets a row at
the end. Joining and leaving can be simulated: every choice follows from the seed, the round and the
client, never from earlier calls, so a resumed run meets the same absences.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch

from pfedseq.engines.conditions import FederationConfig
from pfedseq.federation import Client, Clients, Hello, Reply, Server, Tensors
from pfedseq.seeding import torch_generator


class Change(NamedTuple):
    """The numbers of the clients that join and leave."""

    joined: tuple[int, ...] = ()
    left: tuple[int, ...] = ()


class Roster:
    """The members of a run: an engine's clients, and the places that a server has for them."""

    def __init__(self, engine: Clients, server: Server, conditions: FederationConfig) -> None:
        self.engine, self.server, self.conditions = engine, server, conditions

    @property
    def numbers(self) -> tuple[int, ...]:
        """The client numbers by place."""
        return self.server.setup.clients

    def participants(self, t: int) -> list[int]:
        """The numbers of the clients that are asked to train in round t, members or not."""
        willing = set(self.engine.participants(t))
        here = [i for i in self._joined(t) if i in willing]
        if self.conditions.participation == 1:
            return here
        count = max(1, round(self.conditions.participation * len(here)))
        rng = torch_generator(self.server.setup.seed, "participation", t)
        order = torch.randperm(len(here), generator=rng)
        return sorted(here[k] for k in order[:count].tolist())

    def certain_participants(self, t: int) -> list[int]:
        """The members that are asked to train in round t, whoever joins or leaves before it.

        None if clients are sampled, since a newcomer changes the draw.
        """
        if self.conditions.participation < 1:
            return []
        willing, here = set(self.engine.participants(t)), set(self._joined(t))
        gone_after, silent = self.conditions.gone_after, self.server.silent_rounds.tolist()
        return [
            i
            for i, rounds in zip(self.numbers, silent, strict=True)
            if i in willing and i in here and (gone_after is None or rounds < gone_after)
        ]

    def vanishes(self, t: int, i: int) -> bool:
        """Whether client i receives a message in round t but does not answer."""
        if self.conditions.dropout == 0:
            return False
        draw = torch.rand((), generator=torch_generator(self.server.setup.seed, "dropout", t, i))
        return bool(draw < self.conditions.dropout)

    def call(self, step: str, t: int, down: Mapping[int, Tensors]) -> dict[int, Reply]:
        """Ask clients by number; those that vanish in round t do nothing and are missing."""
        there = down
        if step not in Client.reading_steps:
            there = {i: tensors for i, tensors in down.items() if not self.vanishes(t, i)}
        return self.engine.call(step, t, there)

    def take_seats(self, t: int) -> Change:
        """Before round t: remove the clients that have left and seat newcomers.

        A client that was silent for `gone_after` rounds counts as having left; if it returns, it
        joins as a newcomer. A client that announces its leave takes its personal model along. If
        all would leave, the last ones keep their places.
        """
        gone_after, seated = self.conditions.gone_after, self.numbers
        silent = dict(zip(seated, self.server.silent_rounds.tolist(), strict=True))
        heard = [i for i in seated if gone_after is None or silent[i] < gone_after]
        members = self._members(t, heard)
        strangers = sorted(members - set(heard))
        kept = [place for place, i in enumerate(seated) if i in members and i in heard]
        if len(kept) == len(seated) and not strangers:
            return Change()
        hellos = self.engine.call("hello", t, {i: {} for i in strangers}) if strangers else {}
        newcomers = {i: Hello.of(hellos[i]).train_examples for i in strangers if i in hellos}
        if not kept and not newcomers:
            return Change()
        left = tuple(i for place, i in enumerate(seated) if place not in kept)
        everyone = payloads(self.server)
        if parting := {i: down for i, down in everyone.items() if i in left and i in heard}:
            self.engine.call("export", t - 1, parting)
        self.server.reseat(kept, newcomers)
        return Change(tuple(newcomers), left)

    def _members(self, t: int, before: Sequence[int]) -> set[int]:
        """Remaining clients keep their places; a newcomer gets one when first asked."""
        there = self.engine.members(t, before)  # first: it may admit a newcomer
        asked, here = self.participants(t), self._joined(t)
        return {i for i in there if i in asked or (i in before and i in here)}

    def _joined(self, t: int) -> Sequence[int]:
        return joined(self.engine.ids, t, self.conditions)

    @property
    def update_lengths(self) -> dict[int, list[float]]:
        """The lengths of each client's last accepted updates, by number."""
        known = self.server.update_lengths.tolist()
        return {i: [n for n in row if n > 0] for i, row in zip(self.numbers, known, strict=True)}

    def note_lengths(self, lengths: Mapping[int, float]) -> None:
        """Remember the lengths of accepted updates, by number."""
        known = self.server.update_lengths = self.server.update_lengths.clone()
        for place, i in enumerate(self.numbers):
            if i in lengths:
                known[place] = torch.tensor([*known[place, 1:].tolist(), lengths[i]])

    def note_silence(self, answered: Collection[int]) -> None:
        """After a round: record the clients that did not answer."""
        there = torch.tensor([i in answered for i in self.numbers])
        self.server.silent_rounds = torch.where(there, 0, self.server.silent_rounds + 1)


def joined(everyone: Sequence[int], t: int, conditions: FederationConfig) -> Sequence[int]:
    """Clients that have joined by round t and not left; at least one."""
    late = gone = 0
    if t < conditions.late_round:
        late = round(conditions.late_clients * len(everyone))
    if t >= conditions.leaving_round:
        gone = round(conditions.leaving_clients * len(everyone))
    return everyone[gone : len(everyone) - late] or everyone[:1]


def payloads(server: Server) -> dict[int, Tensors]:
    """The current payload of every seated client, by number."""
    return {i: server.payload(place) for place, i in enumerate(server.setup.clients)}
