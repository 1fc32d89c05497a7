"""What stands between a server and an engine's clients lets through all that is not its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pfedseq.federation import Clients, Reply, Tensors


class PassingClients:
    """The clients of an engine as they are; implements `federation.Clients`."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients

    @property
    def ids(self) -> Sequence[int]:
        """Those of the engine."""
        return self.clients.ids

    def members(self, t: int, before: Sequence[int]) -> Sequence[int]:
        """Those of the engine."""
        return self.clients.members(t, before)

    def participants(self, t: int) -> Sequence[int]:
        """Those of the engine."""
        return self.clients.participants(t)

    def call(self, step: str, t: int, down: Mapping[int, Tensors]) -> dict[int, Reply]:
        """Pass the call on."""
        return self.clients.call(step, t, down)
