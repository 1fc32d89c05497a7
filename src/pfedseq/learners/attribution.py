"""Attribution of calibrations: how much each client's update of each round contributes to ξ_i.

The part of client j's update of round r in ξ_i is gradient × input, ⟨∂f_i/∂Δ_j^r, Δ_j^r⟩, of
f_i = ⟨ξ_i, ξ_i⁰⟩ / ‖ξ_i⁰‖², where ξ_i⁰ is the actual calibration: f_i is 1 there, and for a learner
that is homogeneous in the window (inputs and outputs share their scale) the parts add up to 1. This
linearises a learner that may not be linear, so the effect of really leaving a client out is
computed as well.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Attribution:
    """Contributions to each client's calibration."""

    parts: Tensor
    """(N, N, L): contribution to ξ_i of client j's update of each round, oldest first."""
    left_out: Tensor
    """(N, N): the share of ξ_i that is lost when client j's updates are zero, 1 − f_i."""

    @property
    def by_client(self) -> Tensor:
        """(N, N): contributions summed over rounds."""
        return self.parts.sum(-1)

    @property
    def agreement(self) -> float | None:
        """Correlation of the two attributions over pairs of clients; None if one is constant."""
        pair = torch.stack([self.by_client.flatten(), self.left_out.flatten()])
        if pair.shape[1] < 3 or (pair.std(1) < 1e-12).any():
            return None
        return float(torch.corrcoef(pair)[0, 1])


def attribute(learner: Callable[[Tensor], Tensor], window: Tensor) -> Attribution:
    """Attribute a learner's calibrations (N, K, D) to a window (K, D, L, N).

    A client whose calibration is zero gets zeros.
    """
    num_clients, length = window.shape[3], window.shape[2]
    inputs = window.detach().clone().requires_grad_()
    outputs = learner(inputs)
    as_is = outputs.detach()
    squares = as_is.square().sum((1, 2))  # ‖ξ_i⁰‖² (N,)
    directions = as_is / squares.clamp_min(torch.finfo(as_is.dtype).tiny).view(-1, 1, 1)
    parts = window.new_zeros(num_clients, num_clients, length)
    for i in range(num_clients):
        if squares[i] == 0:
            continue
        f_i = (outputs[i] * directions[i]).sum()
        (slope,) = torch.autograd.grad(f_i, inputs, retain_graph=True)
        # A row of zeros has no scale and therefore no gradient; leave it out.
        products = torch.where(window != 0, slope * window, 0)
        parts[i] = products.sum((0, 1)).T  # (L, N) → (N, L)
    left_out = window.new_zeros(num_clients, num_clients)
    with torch.no_grad():
        for j in range(num_clients):
            without = window.detach().clone()
            without[..., j] = 0
            kept = (learner(without) * directions).sum((1, 2))  # f_i without j
            left_out[:, j] = torch.where(squares > 0, 1 - kept, 0)
    return Attribution(parts, left_out)
