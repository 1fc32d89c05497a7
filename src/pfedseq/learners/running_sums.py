"""Past updates as a few running sums per client, for federations too large for a window.

The useful part of the past is the sum of a client's updates (docs/explanation/learner.md), and a
state-space block is a set of such sums: h ← λ h + Δ. Here the decays λ are fixed, so the sums can
be carried from round to round exactly, independently of the learner's weights, and nothing else of
the past is stored: a server of N clients keeps N·K·D·S numbers instead of N·K·D·L, and does not
read them L times.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pfedseq.learners.history import Gap, stand_in

NUM_SUMS = 4
"""S: gives time constants of 1, 2.7, 7.4 and 20 rounds for L = 20."""


class Past(NamedTuple):
    """The pooled learner's input for the selected rows."""

    sums: Tensor  # (S, N, K, D)
    means: Tensor  # (S, K, D): of the known clients
    rms: Tensor  # (K, D): of updates in the past, the scale of a row


class RunningSums:
    """Sums of each client's updates with time constants of 1 … L rounds, shortest first.

    A sum is h ← λ h + √(1 − λ²) Δ: independent updates give it the variance of one update, and
    constant updates make it √(2 · time) times as large.
    """

    def __init__(self, max_length: int, gaps: Gap = "last") -> None:
        self.max_length = max_length
        """L: the longest time."""
        self.gaps: Gap = gaps
        count = NUM_SUMS if max_length > 1 else 1
        self.times = [max_length ** (s / max(1, count - 1)) for s in range(count)]
        self._decays = [1 - 1 / time for time in self.times]
        self._rounds = 0
        self._sums: Tensor | None = None  # (S, N, K, D)
        self._square = torch.zeros(())  # (K, D): Σ_j λ^{t−j} mean_i (Δ_i^j)², λ of the longest time
        self._silent = torch.zeros(0, dtype=torch.int64)  # (N,) rounds since the last update

    def __len__(self) -> int:
        return self._rounds

    def newest(self) -> Tensor | None:
        """The last round's Δ (N, K, D); none before the first."""
        return None if self._sums is None else self._sums[0]

    def known(self) -> Tensor:
        """(N,) the clients that had an update within the last L rounds."""
        return self._silent < self.max_length

    def append(self, deltas: Tensor, present: Tensor | None = None) -> None:
        """Add Δ^t (N, K, D), of the clients `present` (N,) or of all."""
        deltas, before = deltas.detach(), self.newest()
        if present is not None and before is not None:
            deltas = torch.where(present[:, None, None], deltas, stand_in(before, self.gaps))
        if self._sums is None:
            self._sums = deltas.new_zeros(len(self._decays), *deltas.shape)
            self._silent = torch.full((len(deltas),), self.max_length, device=deltas.device)
        for of_time, decay in zip(self._sums[1:], self._decays[1:], strict=True):
            of_time.mul_(decay).add_(deltas, alpha=(1 - decay**2) ** 0.5)
        self._sums[0] = deltas  # last: the argument may be the result of `newest`
        spoke = torch.stack([(one != 0).any() for one in deltas])
        self._silent = torch.where(spoke, 0, self._silent + 1)
        count = self.known().sum().clamp_min(1)
        squares = torch.stack([layer.square().sum(0) for layer in deltas.unbind(1)])  # no (N, K, D)
        self._square = self._decays[-1] * self._square + squares / count
        self._rounds += 1

    def inputs(self, rows: Tensor | None = None) -> Past:
        """The learner's input, of all D rows or only of `rows` (R,)."""
        assert self._sums is not None  # the server asks only after a round
        sums, square = self._sums, self._square
        if rows is not None:
            sums, square = sums[..., rows], square[:, rows]
        decay = self._decays[-1]
        rounds = (1 - decay**self._rounds) / (1 - decay)  # Σ_j λ^{t−j}
        means = sums.sum(1) / self.known().sum().clamp_min(1)
        return Past(sums, means, (square / rounds).sqrt())

    def reseat(self, kept: Sequence[int], newcomers: int) -> None:
        """Keep the sums of the clients at places `kept`; newcomers get zeros."""
        if self._sums is None:
            return
        sums = self._sums[:, list(kept)]
        joined = sums.new_zeros(len(sums), newcomers, *sums.shape[2:])
        self._sums = torch.cat([sums, joined], 1)
        unknown = self._silent.new_full((newcomers,), self.max_length)
        self._silent = torch.cat([self._silent[list(kept)], unknown])

    def state_dict(self) -> dict[str, Tensor]:
        """The sums by time constant, for a checkpoint."""
        if self._sums is None:
            return {}
        named = {f"sum{s}": of_time for s, of_time in enumerate(self._sums)}
        return named | {
            "square": self._square,
            "silent": self._silent,
            "rounds": torch.tensor(self._rounds),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the result of `state_dict`."""
        self._rounds, self._sums = 0, None
        if state:
            self._sums = torch.stack([state[f"sum{s}"] for s in range(len(self._decays))])
            self._square, self._silent = state["square"], state["silent"]
            self._rounds = int(state["rounds"])
