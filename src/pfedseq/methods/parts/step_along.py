"""The step of a hypernetwork at the server, which several methods share."""

import torch
from torch import Tensor


def step_along(
    optimizer: torch.optim.Optimizer,
    outputs: Tensor,
    direction: Tensor,
    max_norm: float | None = None,
) -> None:
    """Move a network so that its `outputs` move along `direction`: Eq. (5).

    `max_norm` bounds the norm of the gradient of all the optimizer's parameters together.
    """
    optimizer.zero_grad()
    pull_back(outputs, direction)
    clipped_step(optimizer, max_norm)


def pull_back(outputs: Tensor, direction: Tensor) -> None:
    """Add to `.grad` of all that made `outputs` the gradient whose descent moves them along.

    The paper's Δψ = Σ_i (∇_ψ ξ_i)ᵀ Δ_i with Δ = new − old, the direction in which the client
    descended. An optimizer descends along the gradient it is given, so it gets −Δ: the only place
    where a minus sign meets a hypernetwork.
    """
    outputs.backward(-direction)


def clipped_step(optimizer: torch.optim.Optimizer, max_norm: float | None) -> None:
    """One step of the optimizer, its whole gradient scaled down to `max_norm` if it is longer."""
    if max_norm is not None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    optimizer.step()
