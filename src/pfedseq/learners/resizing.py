"""From a learner of some clients to one of others that computes the same for those who stay.

Every axis of a parameter is made of pieces: `client` (an entry for each client), `hidden` and
`rank` (which serve all clients), or a fixed number of entries. So a number of the new learner
either stood somewhere in the old one and is taken over, or it is new. What is new must not change
what was learnt:

- the network's output weights are zero where they are new;
- what was there before reads nothing of new hidden channels;
- all else that is new is as in a fresh learner. So a newcomer's channel is read at once, which adds
  nothing as long as there is no update of the newcomer.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

Piece = Literal["client", "hidden", "rank"] | int
Axis = tuple[Piece, ...] | None
"""What stands along an axis, piece after piece; None where that does not depend on the clients."""
Sizes = Mapping[str, int]
"""How many entries a piece of each kind has."""


class Move:
    """From a learner's sizes `before` to `after`: the clients at places `kept` come first."""

    def __init__(self, before: Sizes, after: Sizes, kept: Sequence[int]) -> None:
        self.before, self.after, self.kept = before, after, list(kept)

    def weights(self, old: Tensor, fresh: Tensor, axes: Sequence[Axis], *, output: bool) -> Tensor:
        """A parameter of the new learner; `output`: it is one of the output weights."""
        origins = self._origins(old, axes)
        moved = torch.zeros_like(fresh) if output else fresh.detach().clone()
        *rows, inputs = origins
        if rows and axes[-1] in (("hidden",), ("rank",)) and any(axes[:-1]):
            known_rows = [(origin >= 0).nonzero().flatten() for origin in rows]
            moved[_grid([*known_rows, (inputs < 0).nonzero().flatten()])] = 0
        return _placed(old, moved, origins)

    def memory(self, old: Tensor, axes: Sequence[Axis], *, new: Literal["zero", "mean"]) -> Tensor:
        """Adam's memory of a parameter; where that is new: zero, or the mean of what there is."""
        origins = self._origins(old, axes)
        changing = [d for d, axis in enumerate(axes) if axis is not None]
        mean = old.mean(changing, keepdim=True) if new == "mean" and changing else old.new_zeros(())
        filled = mean.expand([len(origin) for origin in origins]).clone()
        return _placed(old, filled, origins)

    def _origins(self, old: Tensor, axes: Sequence[Axis]) -> list[Tensor]:
        """Along each axis, where each new entry stood; −1 if nowhere."""
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
