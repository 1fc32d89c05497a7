"""Groups of clients that share passes through the backbone, and their devices."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise

FULL_PASS, FULL_PASS_OF_A_CARD = 40, 64
"""Examples per pass at which the backbone's matrix products are near their fastest."""


def grouped(ids: Sequence[int], size: int) -> list[list[int]]:
    """The ids in ascending order, in groups of at most `size` and as equal as possible."""
    ordered = sorted(ids)
    groups = -(-len(ordered) // size)
    bounds = [len(ordered) * g // groups for g in range(groups + 1)] if groups else [0]
    return [ordered[a:b] for a, b in pairwise(bounds)]


def shares(groups: Sequence[Sequence[int]], work: Mapping[int, int], devices: int) -> list[int]:
    """Assign groups to devices so that all have about the same work; a function of the work only.

    Largest first, each to the device with the least work so far.
    """
    amounts = [sum(work[i] for i in group) for group in groups]
    loads, chosen = [0] * devices, [0] * len(groups)
    for place in sorted(range(len(groups)), key=lambda place: -amounts[place]):
        least = loads.index(min(loads))
        chosen[place] = least
        loads[least] += amounts[place]
    return chosen


def automatic_size(num_clients: int, batch_size: int, cards: int = 0) -> int:
    """How many clients to train in one pass on this machine: enough to fill it, a group per core.

    Where there are graphics cards, a group for each of them.

    More examples than `FULL_PASS` do not make a pass faster, but fall out of the processor's cache
    and take memory. The cores are those of the machine, not `engine.threads`: how many groups run
    side by side must not change what is computed together.
    """
    cores = cards or os.cpu_count() or 1
    largest = max(1, (FULL_PASS_OF_A_CARD if cards else FULL_PASS) // batch_size)
    turns = -(-num_clients // (largest * cores))  # no core is idle in the last one
    return -(-num_clients // (turns * cores))
