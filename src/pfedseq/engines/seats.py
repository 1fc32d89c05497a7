"""Who has which of a server's places: clients that join and leave for good in the course of a run.

A server's rows are places, an engine's clients are numbers that stay theirs for the whole run. A
client that leaves gives up its place and the rows close ranks; a newcomer gets a place behind them.
Methods know places alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch

from pfedseq.engines.passing import PassingClients
from pfedseq.federation import Clients, Hello, Reply, Server, Tensors


class Change(NamedTuple):
    """The clients, by number, that join and that leave."""

    joined: tuple[int, ...] = ()
    left: tuple[int, ...] = ()


class SeatedClients(PassingClients):
    """The clients of an engine as a server knows them: by place; who has none is not asked."""

    def __init__(self, clients: Clients, server: Server) -> None:
        super().__init__(clients)
        self.numbers = server.setup.clients

    @property
    def ids(self) -> Sequence[int]:
        """All places."""
        return range(len(self.numbers))

    def participants(self, t: int) -> Sequence[int]:
        """The places of those that are asked."""
        asked = set(super().participants(t))
        return [place for place, i in enumerate(self.numbers) if i in asked]

    def call(self, step: str, t: int, down: Mapping[int, Tensors]) -> dict[int, Reply]:
        """Pass the call on by number; replies by place."""
        replies = super().call(step, t, {self.numbers[p]: tensors for p, tensors in down.items()})
        return {p: replies[self.numbers[p]] for p in down if self.numbers[p] in replies}


def payloads(server: Server) -> dict[int, Tensors]:
    """What every client that has a place gets now, by its number."""
    return {i: server.payload(place) for place, i in enumerate(server.setup.clients)}


def take_seats(server: Server, clients: Clients, t: int, gone_after: int | None) -> Change:
    """Before round t: who has left loses its place, and who has come gets one.

    Who was silent for `gone_after` rounds is taken to have left; if it comes back, then as a
    newcomer. Who leaves by its own word takes its personal model along. The last ones of all keep
    their places.
    """
    seated = server.setup.clients
    silent = dict(zip(seated, server.silent_rounds.tolist(), strict=True))
    heard = [i for i in seated if gone_after is None or silent[i] < gone_after]
    members = set(clients.members(t, heard))
    strangers = sorted(members - set(heard))
    kept = [place for place, i in enumerate(seated) if i in members and i in heard]
    if len(kept) == len(seated) and not strangers:
        return Change()
    hellos = clients.call("hello", t, {i: {} for i in strangers}) if strangers else {}
    newcomers = {i: Hello.of(hellos[i]).train_examples for i in strangers if i in hellos}
    if not kept and not newcomers:
        return Change()
    left = tuple(i for place, i in enumerate(seated) if place not in kept)
    if parting := {i: down for i, down in payloads(server).items() if i in left and i in heard}:
        clients.call("export", t - 1, parting)
    server.reseat(kept, newcomers)
    return Change(tuple(newcomers), left)


def note_silence(server: Server, answered: Collection[int]) -> None:
    """After a round: who was not heard of in it."""
    there = torch.tensor([i in answered for i in server.setup.clients])
    server.silent_rounds = torch.where(there, 0, server.silent_rounds + 1)
