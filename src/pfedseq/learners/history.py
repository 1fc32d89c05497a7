"""The last L rounds of everyone's updates: the sequential learner's input."""

from collections import deque

import torch
from torch import Tensor


class History:
    """A window over Δ^1, Δ^2, … that keeps the newest `max_length` rounds (Eq. 6)."""

    def __init__(self, max_length: int) -> None:
        self._rounds: deque[Tensor] = deque(maxlen=max_length)

    def __len__(self) -> int:
        return len(self._rounds)

    def append(self, deltas: Tensor) -> None:
        """Add one round's Δ (N, K, D); the oldest beyond L rounds is forgotten."""
        self._rounds.append(deltas.detach())

    def window(self) -> Tensor:
        """All rounds kept, oldest first: (K, D, L', N) with L' ≤ L, a view of (L', N, K, D)."""
        return torch.stack(tuple(self._rounds)).permute(2, 3, 0, 1)

    def state_dict(self) -> dict[str, Tensor]:
        """The rounds by age, for a checkpoint."""
        return {str(age): deltas for age, deltas in enumerate(self._rounds)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` gave."""
        self._rounds.clear()
        self._rounds.extend(state[str(age)] for age in range(len(state)))
