"""Where a calibration came from: which client's updates of which round made ξ_i.

The part of client j's update of round r in ξ_i is gradient × input, ⟨∂f_i/∂Δ_j^r, Δ_j^r⟩, of
f_i = ⟨ξ_i, ξ_i⁰⟩ / ‖ξ_i⁰‖², where ξ_i⁰ is the calibration as it is: f_i is 1 there, and the parts
of a learner that is homogeneous in the window (one whose inputs and outputs share their scale) add
up to 1. It is a linear account of a learner that may not be linear, so beside it stands what
happens when a client is really left out.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Attribution:
    """Who made each client's calibration."""

    parts: Tensor
    """(N, N, L): of ξ_i, what came from client j's update of each round, oldest first."""
    left_out: Tensor
    """(N, N): how much of ξ_i is gone when client j's updates are zero, 1 − f_i."""

    @property
    def by_client(self) -> Tensor:
        """(N, N): the parts of all rounds together."""
        return self.parts.sum(-1)

    @property
    def agreement(self) -> float | None:
        """Correlation over all pairs of clients of the two accounts; None where one is constant."""
        pair = torch.stack([self.by_client.flatten(), self.left_out.flatten()])
        if pair.shape[1] < 3 or (pair.std(1) < 1e-12).any():
            return None
        return float(torch.corrcoef(pair)[0, 1])


def attribute(learner: Callable[[Tensor], Tensor], window: Tensor) -> Attribution:
    """The account of a learner's calibrations (N, K, D) on a window (K, D, L, N).

    A client whose calibration is zero has nothing to account for: its parts are zero.
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
        # A row of zeros has no scale, and so no slope: what is not there takes no part.
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
