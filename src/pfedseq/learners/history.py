"""The last L rounds of everyone's updates: the sequential learner's input."""

from collections import deque
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

GAP_DECAY = 0.5
"""What is left, a round later, of the update that stands in for an absent client's."""


Gap = Literal["zero", "last", "decayed"]


def fill_gaps(deltas: Tensor, present: Tensor, newest: Tensor | None, policy: Gap) -> Tensor:
    """Δ^t (N, K, D) as the history keeps it: what stands there for clients that were absent.

    Nothing (`zero`), what stood there the round before (`last`), or half of that (`decayed`).
    """
    if policy == "zero" or newest is None:
        return deltas
    stand_in = newest if policy == "last" else GAP_DECAY * newest
    return torch.where(present[:, None, None], deltas, stand_in)


class History:
    """A window over Δ^1, Δ^2, … that keeps the newest `max_length` rounds (Eq. 6)."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        """L."""
        self._rounds: deque[Tensor] = deque(maxlen=max_length)

    def __len__(self) -> int:
        return len(self._rounds)

    def newest(self) -> Tensor | None:
        """The last round's Δ (N, K, D); none before the first."""
        return self._rounds[-1] if self._rounds else None

    def known(self) -> Tensor:
        """(N,) the clients of which the window holds an update."""
        return torch.stack([(deltas != 0).flatten(1).any(1) for deltas in self._rounds]).any(0)

    def append(self, deltas: Tensor) -> None:
        """Add one round's Δ (N, K, D); the oldest beyond L rounds is forgotten."""
        self._rounds.append(deltas.detach())

    def reseat(self, kept: Sequence[int], newcomers: int) -> None:
        """Of those that are not `kept` nothing is left; nothing is known of the newcomers."""
        rows = [deltas[list(kept)] for deltas in self._rounds]
        joined = [of_kept.new_zeros(newcomers, *of_kept.shape[1:]) for of_kept in rows]
        self._rounds = deque(map(torch.cat, zip(rows, joined, strict=True)), self.max_length)

    def window(self) -> Tensor:
        """All rounds kept, oldest first: (K, D, L', N) with L' ≤ L, a view of (L', N, K, D)."""
        return torch.stack(tuple(self._rounds)).permute(2, 3, 0, 1)

    def inputs(self, rows: Tensor | None = None) -> Tensor:
        """What the learner reads: the window, of all D rows or of `rows` (R,) alone."""
        if rows is None:
            return self.window()
        return torch.stack([deltas[..., rows] for deltas in self._rounds]).permute(2, 3, 0, 1)

    def state_dict(self) -> dict[str, Tensor]:
        """The rounds by age, for a checkpoint."""
        return {str(age): deltas for age, deltas in enumerate(self._rounds)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` gave."""
        self._rounds.clear()
        self._rounds.extend(state[str(age)] for age in range(len(state)))
