"""Everyone's past as a few running sums, for more clients than a window of rounds has room for.

What pays in looking back is the sum of a client's past updates (docs/explanation/learner.md), and a
state-space block is a set of such sums: h ← λ h + Δ. Here the decays λ are fixed, so the sums can
be carried from round to round exactly, whatever the learner's weights are, and nothing else of the
past is stored: a server of N clients keeps N·K·D·S numbers instead of N·K·D·L, and does not read
them L times.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

NUM_SUMS = 4
"""S: enough for times of 1, 2.7, 7.4 and 20 rounds where L is 20."""


class Past(NamedTuple):
    """What the pooled learner reads of the rows it is asked for."""

    sums: Tensor  # (S, N, K, D)
    means: Tensor  # (S, K, D): of the known clients
    rms: Tensor  # (K, D): of updates in the past, the scale of a row


class RunningSums:
    """Sums of each client's updates that fade over 1 … L rounds; the first is the newest update.

    A sum is h ← λ h + √(1 − λ²) Δ: independent updates give it the variance of one of them, and
    updates that agree show in it √(2 · time) times as large.
    """

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        """L: the longest time."""
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

    def append(self, deltas: Tensor) -> None:
        """Add one round's Δ (N, K, D)."""
        deltas = deltas.detach()
        if self._sums is None:
            self._sums = deltas.new_zeros(len(self._decays), *deltas.shape)
            self._silent = torch.full((len(deltas),), self.max_length, device=deltas.device)
        for of_time, decay in zip(self._sums[1:], self._decays[1:], strict=True):
            of_time.mul_(decay).add_(deltas, alpha=(1 - decay**2) ** 0.5)
        self._sums[0] = deltas  # last: they may be what `newest` gave
        spoke = torch.stack([(one != 0).any() for one in deltas])
        self._silent = torch.where(spoke, 0, self._silent + 1)
        count = self.known().sum().clamp_min(1)
        squares = torch.stack([layer.square().sum(0) for layer in deltas.unbind(1)])  # no (N, K, D)
        self._square = self._decays[-1] * self._square + squares / count
        self._rounds += 1

    def inputs(self, rows: Tensor | None = None) -> Past:
        """What the learner reads: of all D rows, or of `rows` (R,) alone."""
        assert self._sums is not None  # the server asks once there was a round
        sums, square = self._sums, self._square
        if rows is not None:
            sums, square = sums[..., rows], square[:, rows]
        decay = self._decays[-1]
        rounds = (1 - decay**self._rounds) / (1 - decay)  # Σ_j λ^{t−j}
        means = sums.sum(1) / self.known().sum().clamp_min(1)
        return Past(sums, means, (square / rounds).sqrt())

    def reseat(self, kept: Sequence[int], newcomers: int) -> None:
        """Of those that are not `kept` nothing is left; nothing is known of the newcomers."""
        if self._sums is None:
            return
        sums = self._sums[:, list(kept)]
        joined = sums.new_zeros(len(sums), newcomers, *sums.shape[2:])
        self._sums = torch.cat([sums, joined], 1)
        unknown = self._silent.new_full((newcomers,), self.max_length)
        self._silent = torch.cat([self._silent[list(kept)], unknown])

    def state_dict(self) -> dict[str, Tensor]:
        """The sums by their time, for a checkpoint."""
        if self._sums is None:
            return {}
        named = {f"sum{s}": of_time for s, of_time in enumerate(self._sums)}
        return named | {
            "square": self._square,
            "silent": self._silent,
            "rounds": torch.tensor(self._rounds),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` gave."""
        self._rounds, self._sums = 0, None
        if state:
            self._sums = torch.stack([state[f"sum{s}"] for s in range(len(self._decays))])
            self._square, self._silent = state["square"], state["silent"]
            self._rounds = int(state["rounds"])
