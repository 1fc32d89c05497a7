"""The last L rounds of everyone's updates: the sequential learner's input."""

from collections import deque
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

GAP_DECAY = 0.5
"""Factor per round of the update that stands in for an absent client's."""

SMALLEST_LENGTH = 1e-30
"""Avoids division by zero for an update of zeros."""

Gap = Literal["zero", "last", "decayed"]


def fill_gaps(deltas: Tensor, present: Tensor, newest: Tensor | None, policy: Gap) -> Tensor:
    """Δ^t (N, K, D) with the rows of absent clients filled in.

    Filled with zeros (`zero`), the previous round's row (`last`), or half of it (`decayed`).
    """
    if policy == "zero" or newest is None:
        return deltas
    stand_in = newest if policy == "last" else GAP_DECAY * newest
    return torch.where(present[:, None, None], deltas, stand_in)


def bounded(deltas: Tensor, usual: Tensor, factor: float) -> Tensor:
    """Δ^t (N, K, D), scaled down in each client's layer to `factor` times its usual length (N, K).

    A client without a usual length (0: no update known) is left unchanged.
    """
    lengths = deltas.norm(dim=-1)
    limits = torch.where(usual > 0, factor * usual, torch.inf)
    shares: Tensor = (limits / lengths.clamp_min(SMALLEST_LENGTH)).clamp(max=1)
    return deltas * shares.unsqueeze(-1)


class Rounds:
    """The newest `max_length` rounds of a per-client quantity: tensors (N, …)."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        """L."""
        self._rounds: deque[Tensor] = deque(maxlen=max_length)

    def __len__(self) -> int:
        return len(self._rounds)

    def append(self, of_clients: Tensor) -> None:
        """Append one round's (N, …) and drop rounds beyond the newest L."""
        self._rounds.append(of_clients.detach())

    def reseat(self, kept: Sequence[int], newcomers: int) -> None:
        """Keep the rows of the clients at places `kept`; newcomers get zeros."""
        rows = [of_clients[list(kept)] for of_clients in self._rounds]
        joined = [of_kept.new_zeros(newcomers, *of_kept.shape[1:]) for of_kept in rows]
        self._rounds = deque(map(torch.cat, zip(rows, joined, strict=True)), self.max_length)

    def state_dict(self) -> dict[str, Tensor]:
        """The rounds by age, for a checkpoint."""
        return {str(age): of_clients for age, of_clients in enumerate(self._rounds)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the result of `state_dict`."""
        self._rounds.clear()
        self._rounds.extend(state[str(age)] for age in range(len(state)))


class Lengths(Rounds):
    """Length of each client's updates in each layer: ‖Δ‖ (N, K); 0 for an absent client."""

    def usual(self) -> Tensor:
        """(N, K) each client's median over the window; 0 for one that has sent nothing in it."""
        lengths = torch.stack(tuple(self._rounds))  # (L', N, K)
        return torch.where(lengths > 0, lengths, torch.nan).nanmedian(0).values.nan_to_num(0.0)


class History(Rounds):
    """A window over Δ^1, Δ^2, … that keeps the newest L rounds (Eq. 6)."""

    def newest(self) -> Tensor | None:
        """The last round's Δ (N, K, D); none before the first."""
        return self._rounds[-1] if self._rounds else None

    def known(self) -> Tensor:
        """(N,) the clients of which the window holds an update."""
        return torch.stack([(deltas != 0).flatten(1).any(1) for deltas in self._rounds]).any(0)

    def window(self) -> Tensor:
        """All rounds kept, oldest first: (K, D, L', N) with L' ≤ L, a view of (L', N, K, D)."""
        return torch.stack(tuple(self._rounds)).permute(2, 3, 0, 1)

    def inputs(self, rows: Tensor | None = None) -> Tensor:
        """The learner's input: the window of all D rows, or only of `rows` (R,)."""
        if rows is None:
            return self.window()
        return torch.stack([deltas[..., rows] for deltas in self._rounds]).permute(2, 3, 0, 1)
