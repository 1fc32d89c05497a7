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
    """The interface of every architecture: Eq. (2) for all K layers at once.

    Each is also an `nn.Module`, whose parameters are ψ.
    """

    def __call__(self, window: Tensor) -> Tensor:
        """ξ (K, D, N) from the last rounds' updates (K, D, L, N), oldest first."""
        ...

    def output_weights(self) -> list[Parameter]:
        """The weights of the last layer, which emits the calibrations."""
        ...

    def sizes(self) -> Sizes:
        """The number of clients and of hidden channels of each kind."""
        ...

    def axes(self) -> dict[str, tuple[Axis, ...]]:
        """The meaning of each axis of every parameter, by parameter name."""
        ...
