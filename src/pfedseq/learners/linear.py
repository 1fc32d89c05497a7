"""A linear baseline for the sequential learners: one matrix per layer over the window's sum.

ξ = s W_k with s = Σ_j Δ^j / √L' over the L' steps of the window. It covers the whole window, mixes
clients, sees direction and starts at zero: a sequence model must do better than this to be worth
its cost.
"""

import torch
from torch import Tensor, nn

from pfedseq.learners.layerwise import check_sizes, check_window
from pfedseq.learners.resizing import Axis, Sizes


class LinearLearner(nn.Module):
    """K matrices: windows of updates (K, D, L, N) in, calibrations (K, D, N) out.

    Args:
        num_layers: K, the backbone's layers; each has its own matrix.
        num_clients: N.
    """

    def __init__(self, num_layers: int, num_clients: int) -> None:
        super().__init__()
        check_sizes(self, num_layers=num_layers, num_clients=num_clients)
        self.num_layers, self.num_clients = num_layers, num_clients
        self.weight = nn.Parameter(torch.zeros(num_layers, num_clients, num_clients))

    def forward(self, window: Tensor) -> Tensor:
        """ξ (K, D, N) from a window (K, D, L, N) of any length L ≥ 1."""
        check_window(window, self, self.num_layers, self.num_clients)
        calibrations: Tensor = window.sum(2) / window.shape[2] ** 0.5 @ self.weight
        return calibrations

    def output_weights(self) -> list[nn.Parameter]:
        """The one weight matrix of each layer."""
        return [self.weight]

    def sizes(self) -> Sizes:
        """Sizes of the axes that depend on the number of clients."""
        return {"client": self.num_clients}

    def axes(self) -> dict[str, tuple[Axis, ...]]:
        """A row and a column for each client."""
        return {"weight": (None, ("client",), ("client",))}
