"""φ = (θ, ω): what a client tunes, as plain vectors that every method does algebra on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Part = Literal["both", "adapter", "head"]
"""A part of φ."""


@dataclass(frozen=True)
class Params:
    """A model φ = (θ, ω) or a direction in its space (a gradient, an update).

    Immutable: every operation returns new tensors.
    """

    adapter: Tensor
    """θ (K, D): one row of D adapter parameters for each of the K backbone layers."""
    head: Tensor
    """ω (H,): the classification head, flattened."""

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Params:
        """φ from a message or a state that carries it as `adapter` and `head`."""
        return cls(tensors["adapter"], tensors["head"])

    def tensors(self) -> dict[str, Tensor]:
        """φ as a message or a state carries it: the inverse of `of`."""
        return {"adapter": self.adapter, "head": self.head}

    def __add__(self, other: Params) -> Params:
        return Params(self.adapter + other.adapter, self.head + other.head)

    def __sub__(self, other: Params) -> Params:
        return Params(self.adapter - other.adapter, self.head - other.head)

    def __mul__(self, factor: float | Tensor) -> Params:
        return Params(self.adapter * factor, self.head * factor)

    __rmul__ = __mul__

    def descend(self, gradient: Params, lr: float, head_lr: float | None = None) -> Params:
        """φ − lr · gradient, ω at `head_lr` if given; rounded once as `torch.optim.SGD` does."""
        return Params(
            torch.sub(self.adapter, gradient.adapter, alpha=lr),
            torch.sub(self.head, gradient.head, alpha=lr if head_lr is None else head_lr),
        )

    def taking(self, other: Params, part: Part) -> Params:
        """This φ with `part` of another."""
        return Params(
            self.adapter if part == "head" else other.adapter,
            self.head if part == "adapter" else other.head,
        )

    def flat(self) -> Tensor:
        """φ as one vector (K·D + H,): θ row by row, then ω."""
        return torch.cat([self.adapter.reshape(-1), self.head])

    def unflat(self, vector: Tensor) -> Params:
        """The inverse of `flat`: a vector (K·D + H,) cut into the shapes of this φ."""
        size = self.adapter.numel()
        return Params(vector[:size].view_as(self.adapter), vector[size:])


def weighted_mean(stacked: Tensor, weights: Sequence[float] | Tensor) -> Tensor:
    """Σ_i w_i x_i / Σ_i w_i over the leading (client) axis of `stacked` (N, …): Eq. (1)."""
    w = torch.as_tensor(weights, dtype=stacked.dtype, device=stacked.device)
    if len(w) != len(stacked):
        raise ValueError(f"{len(w)} weights for {len(stacked)} clients")
    mean: Tensor = torch.tensordot(w / w.sum(), stacked, dims=1)
    return mean


def capped(weights: Tensor, share: float) -> Tensor:
    """Weights (N,) ≥ 0 of which none has more than `share` of their sum; the others stay.

    The m largest become x with x = share · (m·x + the sum of the others). Where there are not more
    than 1/share positive ones, no weights fulfil that but equal ones, and they stay as they are.
    """
    wide = weights.to(torch.float64)
    most = share * wide.sum()
    if int((wide > 0).sum()) * share <= 1 or bool((wide <= most).all()):
        return weights
    falling, m = wide.sort(descending=True).values, 0
    while falling[m] > most:  # ends while m · share < 1: the next bound is no less than the rest
        m += 1
        most = share * falling[m:].sum() / (1 - m * share)
    return wide.clamp(max=float(most))


def trimmed_mean(stacked: Tensor, trimmed: int) -> Tensor:
    """The mean over clients without the `trimmed` lowest and highest, number by number."""
    if not 0 <= 2 * trimmed < len(stacked):
        raise ValueError(f"of {len(stacked)} clients {trimmed} cannot be left out at each end")
    return stacked.sort(0).values[trimmed : len(stacked) - trimmed].mean(0)
