"""LoRA's two factors inside θ: which of a row's D entries are A's and which B's, as matrices.

Every adapted projection has A (r, in) and B (out, r), and adds (α/r)·BA to its frozen weight. Rows
of A and columns of B go in pairs, so that two adapters of ranks r and s are one of rank r + s:
with A = [A_g; A_l] and B = [B_g, B_l] the product BA is B_g A_g + B_l A_l.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pfedseq.errors import InputError


class Projection(NamedTuple):
    """The offsets of a projection's A (rank, inputs) and B (outputs, rank) in a row of θ."""

    down: int
    up: int
    inputs: int
    outputs: int


class Matrices(NamedTuple):
    """A projection's factors in every layer, of one θ or of several."""

    down: Tensor
    """A (…, K, r, in)."""
    up: Tensor
    """B (…, K, out, r)."""


@dataclass(frozen=True)
class Factors:
    """The positions of A and B in θ (…, K, D)."""

    adapter_dim: int
    """D."""
    rank: int
    projections: tuple[Projection, ...]

    @property
    def only_factors(self) -> bool:
        """Whether θ holds only A and B: true of LoRA; DoRA also has row magnitudes."""
        sizes = (self.rank * (p.inputs + p.outputs) for p in self.projections)
        return sum(sizes) == self.adapter_dim

    def mask(self, factor: Literal["A", "B"], like: Tensor) -> Tensor:
        """Mask (D,) of the entries of A, or of B, on the device of `like`."""
        mask = torch.zeros(self.adapter_dim, dtype=torch.bool, device=like.device)
        for p in self.projections:
            start, width = (p.down, p.inputs) if factor == "A" else (p.up, p.outputs)
            mask[start : start + self.rank * width] = True
        return mask

    def matrices(self, adapter: Tensor) -> list[Matrices]:
        """Views of θ (…, K, D) as its projections' A and B."""
        found = []
        for p in self.projections:
            down = adapter[..., p.down : p.down + self.rank * p.inputs]
            up = adapter[..., p.up : p.up + self.rank * p.outputs]
            found.append(
                Matrices(
                    down.unflatten(-1, (self.rank, p.inputs)),
                    up.unflatten(-1, (p.outputs, self.rank)),
                )
            )
        return found

    def adapter(self, matrices: Sequence[Matrices]) -> Tensor:
        """θ (…, K, D) from A and B: the inverse of `matrices` if θ holds nothing else."""
        shape = matrices[0].down.shape[:-2]
        theta = matrices[0].down.new_zeros(*shape, self.adapter_dim)
        for p, (down, up) in zip(self.projections, matrices, strict=True):
            theta[..., p.down : p.down + self.rank * p.inputs] = down.flatten(-2)
            theta[..., p.up : p.up + self.rank * p.outputs] = up.flatten(-2)
        return theta

    def of_rank(self, rank: int) -> Factors:
        """The same projections with A and B of another rank, in the same order."""
        starts = sorted(start for p in self.projections for start in (p.down, p.up))
        widths = {p.down: p.inputs for p in self.projections}
        widths |= {p.up: p.outputs for p in self.projections}
        moved, place = {}, 0
        for start in starts:
            moved[start] = place
            place += rank * widths[start]
        projections = [p._replace(down=moved[p.down], up=moved[p.up]) for p in self.projections]
        return Factors(place, rank, tuple(projections))

    def split(self, adapter: Tensor, blocks: int) -> list[Tensor]:
        """θ (…, K, D) of `blocks` adapters of equal rank as each one's own (…, K, D / blocks)."""
        narrow = self.of_rank(self.rank // blocks)
        pieces = [
            zip(m.down.chunk(blocks, -2), m.up.chunk(blocks, -1), strict=True)
            for m in self.matrices(adapter)
        ]
        return [
            narrow.adapter([Matrices(*p) for p in block]) for block in zip(*pieces, strict=True)
        ]

    def join(self, adapters: Sequence[Tensor]) -> Tensor:
        """θ of several adapters side by side: the inverse of `split`."""
        narrow = self.of_rank(self.rank // len(adapters))
        parts = zip(*(narrow.matrices(one) for one in adapters), strict=True)
        return self.adapter(
            [
                Matrices(torch.cat([m.down for m in some], -2), torch.cat([m.up for m in some], -1))
                for some in parts
            ]
        )

    def weights(self, of_blocks: Tensor) -> Tensor:
        """(D,) what θ is multiplied by, so that the product of its block c has weight c.

        B carries the weight, and A stays. Then ∂L/∂θ is this times ∂L/∂(θ · this).
        """
        columns = of_blocks.repeat_interleave(self.rank // len(of_blocks))
        ones = [
            Matrices(columns.new_ones(self.rank, p.inputs), columns.expand(p.outputs, -1))
            for p in self.projections
        ]
        weights = self.adapter(ones)
        return torch.where(self.mask("A", weights) | self.mask("B", weights), weights, 1.0)


def factors_needed(factors: Factors | None, method: str, *, alone: bool = False) -> Factors:
    """The layout of A and B; refuses other adapters, and with `alone` also DoRA."""
    if factors is None:
        raise InputError(
            f"{method} works on LoRA's two factors, which this adapter does not have: set "
            "adapter.kind to 'lora'"
        )
    if alone and not factors.only_factors:
        raise InputError(
            f"{method} works on products of LoRA's two factors, and DoRA's rows have lengths of "
            "their own: set adapter.kind to 'lora'"
        )
    return factors
