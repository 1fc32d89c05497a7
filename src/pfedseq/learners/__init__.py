"""The sequential learners: hypernetworks that read a window of updates and emit calibrations."""

from typing import Protocol

from torch import Tensor
from torch.nn import Parameter

from pfedseq.learners.linear import LinearLearner
from pfedseq.learners.lstm import LSTMLearner
from pfedseq.learners.mamba import MambaLearner
from pfedseq.learners.mlp import MLPLearner
from pfedseq.learners.resizing import Axis, Sizes

__all__ = ["LSTMLearner", "LinearLearner", "MLPLearner", "MambaLearner", "SequentialLearner"]


class SequentialLearner(Protocol):
    """What every architecture offers the server: Eq. (2) for all K layers at once.

    Each is also an `nn.Module`, whose parameters are ψ.
    """

    def __call__(self, window: Tensor) -> Tensor:
        """ξ (K, D, N) from the last rounds' updates (K, D, L, N), oldest first."""
        ...

    def output_weights(self) -> list[Parameter]:
        """The part of ψ that makes the output of what was read: the last of its layers."""
        ...

    def sizes(self) -> Sizes:
        """How many clients it serves, and how many hidden channels of each kind it has for them."""
        ...

    def axes(self) -> dict[str, tuple[Axis, ...]]:
        """What stands along the axes of every parameter, by its name."""
        ...
