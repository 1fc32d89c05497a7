"""The sequential learners: hypernetworks that read a window of updates and emit calibrations."""

from typing import Any, Protocol

from torch import Tensor
from torch.nn import Parameter

from pfedseq.learners.linear import LinearLearner
from pfedseq.learners.lstm import LSTMLearner
from pfedseq.learners.mamba import MambaLearner
from pfedseq.learners.mlp import MLPLearner

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

    def of_client(self, client: int) -> list[tuple[Parameter, Any]]:
        """The numbers of ψ that read or write one client's channel: parameters, and where in them.

        All others are hidden, and serve all clients.
        """
        ...
