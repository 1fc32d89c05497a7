"""The introduction before round 1: what clients tell the server about themselves."""

from __future__ import annotations

from collections.abc import Sequence

from pfedseq.errors import InputError
from pfedseq.federation import Clients, Hello


def introduce(clients: Clients, ids: Sequence[int]) -> tuple[Hello, ...]:
    """Collect the clients' hellos in order; refuse missing hellos and differing classes."""
    replies = clients.call("hello", 0, {i: {} for i in ids})
    silent = [i for i in ids if i not in replies]
    if silent:
        raise InputError(f"received no hello from client {', '.join(map(str, silent))}")
    hellos = tuple(Hello.of(replies[i]) for i in ids)
    first = hellos[0].class_names
    for i, hello in zip(ids, hellos, strict=True):
        if hello.class_names != first:
            differing = sorted(set(first) ^ set(hello.class_names)) or ["their order"]
            raise InputError(
                f"clients {ids[0]} and {i} do not name the same classes "
                f"({', '.join(differing)}): all need the same, in the same order"
            )
    return hellos
