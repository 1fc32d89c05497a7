"""The last L rounds of everyone's updates: the sequential learner's input."""

from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

GAP_DECAY = 0.5
"""Factor per round of the update that stands in for an absent client's."""

SMALLEST_LENGTH = 1e-30
"""Avoids division by zero for an update of zeros."""

Gap = Literal["zero", "last", "decayed"]


def stand_in(before: Tensor, policy: Gap, out: Tensor | None = None) -> Tensor:
    """What an absent client's row is filled with, from the round before.

    Zeros (`zero`), the row again (`last`), or half of it (`decayed`).
    """
    share = {"zero": 0.0, "last": 1.0, "decayed": GAP_DECAY}[policy]
    return torch.mul(before, share, out=out)


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


class Sent(NamedTuple):
    """One round's updates, of the clients that sent one."""

    places: Tensor  # (P,)
    deltas: Tensor  # (P, K, D)


class History:
    """A window over Δ^1, Δ^2, … that keeps the newest L rounds (Eq. 6).

    Only what clients sent is stored. What stands in for absent clients (`stand_in`) is computed
    when the window is read, from the oldest round, which is stored complete.
    """

    def __init__(self, max_length: int, gaps: Gap = "last") -> None:
        self.max_length = max_length
        """L."""
        self.gaps: Gap = gaps
        self._rounds: deque[Sent] = deque()

    def __len__(self) -> int:
        return len(self._rounds)

    def append(self, deltas: Tensor, present: Tensor | None = None) -> None:
        """Append Δ^t (N, K, D), of the clients `present` (N,) or of all; drop rounds beyond L."""
        first = not self._rounds
        if present is None or first:  # nothing stands in for a client that was absent in round 1
            present = torch.ones(len(deltas), dtype=torch.bool, device=deltas.device)
        sent = deltas.detach() if present.all() else deltas.detach()[present]
        self._rounds.append(Sent(present.nonzero().squeeze(1), sent))
        if len(self._rounds) > self.max_length:
            self._drop_oldest()

    def newest(self) -> Tensor | None:
        """The last round's Δ (N, K, D); none before the first."""
        if not self._rounds:
            return None
        filled = self._rounds[0].deltas[self._rounds[0].places.argsort()]
        for sent in list(self._rounds)[1:]:
            filled = self._filled(sent, filled)
        return filled

    def known(self) -> Tensor:
        """(N,) the clients of which the window holds an update."""
        known = torch.zeros_like(self._rounds[0].places, dtype=torch.bool)
        for places, deltas in self._rounds:
            known[places] |= (deltas != 0).flatten(1).any(1)
        return known

    def window(self) -> Tensor:
        """All rounds kept, oldest first: (K, D, L', N) with L' ≤ L, a view of (L', N, K, D)."""
        return self.inputs()

    def inputs(self, rows: Tensor | None = None) -> Tensor:
        """The learner's input: the window of all D rows, or only of `rows` (R,)."""
        places, oldest = self._rounds[0]
        _, layers, dim = oldest.shape
        dim = dim if rows is None else len(rows)
        window = oldest.new_empty(len(self), len(places), layers, dim)
        for age, (places, deltas) in enumerate(self._rounds):
            if len(places) < window.shape[1]:
                stand_in(window[age - 1], self.gaps, out=window[age])
            window[age, places] = deltas if rows is None else deltas[..., rows]
        return window.permute(2, 3, 0, 1)

    def reseat(self, kept: Sequence[int], newcomers: int) -> None:
        """Keep the rows of the clients at places `kept`; newcomers get zeros."""
        new_place = {old: new for new, old in enumerate(kept)}
        joined = range(len(kept), len(kept) + newcomers)
        for age, (places, deltas) in enumerate(self._rounds):
            stay = [row for row, old in enumerate(places.tolist()) if old in new_place]
            seats = [new_place[int(places[row])] for row in stay]
            rows = deltas[stay]
            if age == 0:
                seats += joined
                rows = torch.cat([rows, rows.new_zeros(newcomers, *rows.shape[1:])])
            self._rounds[age] = Sent(places.new_tensor(seats), rows)

    def state_dict(self) -> dict[str, Tensor]:
        """The rounds by age, for a checkpoint."""
        named = {str(age): sent.deltas for age, sent in enumerate(self._rounds)}
        return named | {f"places{age}": sent.places for age, sent in enumerate(self._rounds)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the result of `state_dict`."""
        ages = range(len(state) // 2)
        self._rounds = deque(Sent(state[f"places{age}"], state[str(age)]) for age in ages)

    def _drop_oldest(self) -> None:
        oldest = self._rounds.popleft()
        following = self._rounds[0]
        if len(following.places) < len(oldest.places):
            filled = self._filled(following, oldest.deltas[oldest.places.argsort()])
            everyone = torch.arange(len(filled), device=filled.device)
            self._rounds[0] = Sent(everyone, filled)

    def _filled(self, sent: Sent, before: Tensor) -> Tensor:
        """The round (N, K, D) that follows the complete round `before`."""
        filled = torch.empty_like(before)
        if len(sent.places) < len(before):
            stand_in(before, self.gaps, out=filled)
        filled[sent.places] = sent.deltas
        return filled
