"""SGD with momentum, equal to `torch.optim.SGD`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pfedseq.training.config import LocalTraining


def sgd(
    x: Tensor, gradient: Tensor, lr: float, memory: dict[str, Tensor], config: LocalTraining
) -> Tensor:
    """x − lr · u with u ← μ u + (g + decay · x); Nesterov's step is along g + decay · x + μ u."""
    if config.weight_decay:
        gradient = torch.add(gradient, x, alpha=config.weight_decay)
    if config.momentum:
        before = memory.get("momentum")
        velocity = gradient
        if before is not None:
            velocity = torch.add(gradient, before, alpha=config.momentum)
        memory["momentum"] = velocity
        nesterov = config.nesterov
        gradient = torch.add(gradient, velocity, alpha=config.momentum) if nesterov else velocity
    return torch.sub(x, gradient, alpha=lr)
