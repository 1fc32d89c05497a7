"""Resizing a learner to a new set of clients without changing its output for those that remain.

Every axis of a parameter is made of pieces: `client` (an entry for each client), `hidden` and
`rank` (which serve all clients), or a fixed number of entries. So an entry of the new learner
either has a counterpart in the old one and is copied, or it is new. New entries must not change
what was learnt:

- new output weights are zero;
- existing channels do not read new hidden channels;
- all other new entries are initialised as in a fresh learner. A newcomer's channel is therefore
  read from the start; it adds nothing until the first update.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

Piece = Literal["client", "hidden", "rank"] | int
Axis = tuple[Piece, ...] | None
"""The pieces along an axis, in order; None if the axis does not depend on the clients."""
Sizes = Mapping[str, int]
"""How many entries a piece of each kind has."""


class Move:
    """From a learner's sizes `before` to `after`: the clients at places `kept` come first."""

    def __init__(self, before: Sizes, after: Sizes, kept: Sequence[int]) -> None:
        self.before, self.after, self.kept = before, after, list(kept)

    def weights(self, old: Tensor, fresh: Tensor, axes: Sequence[Axis], *, output: bool) -> Tensor:
        """The resized parameter; `output` marks output weights."""
        origins = self._origins(old, axes)
        moved = torch.zeros_like(fresh) if output else fresh.detach().clone()
        *rows, inputs = origins
        if rows and axes[-1] in (("hidden",), ("rank",)) and any(axes[:-1]):
            known_rows = [(origin >= 0).nonzero().flatten() for origin in rows]
            moved[_grid([*known_rows, (inputs < 0).nonzero().flatten()])] = 0
        return _placed(old, moved, origins)

    def memory(self, old: Tensor, axes: Sequence[Axis], *, new: Literal["zero", "mean"]) -> Tensor:
        """Adam's state of a resized parameter; new entries are zero or the mean of the old ones."""
        origins = self._origins(old, axes)
        changing = [d for d, axis in enumerate(axes) if axis is not None]
        mean = old.mean(changing, keepdim=True) if new == "mean" and changing else old.new_zeros(())
        filled = mean.expand([len(origin) for origin in origins]).clone()
        return _placed(old, filled, origins)

    def _origins(self, old: Tensor, axes: Sequence[Axis]) -> list[Tensor]:
        """Along each axis, the old index of each new entry; −1 for new ones."""
        return [
            torch.arange(length) if axis is None else self._along(axis)
            for axis, length in zip(axes, old.shape, strict=True)
        ]

    def _along(self, axis: tuple[Piece, ...]) -> Tensor:
        parts, start = [], 0
        for piece in axis:
            before, after = (
                piece if isinstance(piece, int) else sizes[piece]
                for sizes in (self.before, self.after)
            )
            stood = self.kept if piece == "client" else list(range(min(before, after)))
            part = torch.tensor([*stood, *[-1] * (after - len(stood))])
            parts.append(torch.where(part < 0, -1, part + start))
            start += before
        return torch.cat(parts)


def _placed(old: Tensor, new: Tensor, origins: Sequence[Tensor]) -> Tensor:
    """`new` with the numbers of `old` where they belong."""
    where = _grid([(origin >= 0).nonzero().flatten() for origin in origins])
    new[where] = old[_grid([origin[origin >= 0] for origin in origins])]
    return new


def _grid(along: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Indices of all combinations of those along each axis."""
    return torch.meshgrid(*along, indexing="ij")
