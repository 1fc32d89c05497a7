"""AdamW: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, Algorithm 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pfedseq.training.config import LocalTraining

SECOND = ("second", "second_share")
"""The part of the state that the server can average: v, and c of v̂ = v / c."""


def adamw(
    x: Tensor, gradient: Tensor, lr: float, memory: dict[str, Tensor], config: LocalTraining
) -> Tensor:
    """(1 − lr · decay) x − lr · m̂ / (√v̂ + ε), with the running means m of g and v of g².

    m̂ = m / c and v̂ = v / c, where c ← β c + (1 − β) is the total weight of a running mean that
    started at zero: 1 − β^k after k steps, as in the paper, and also correct for a mean that
    continues from the average of several clients' v and c.
    """
    first_beta, second_beta = config.betas
    for moment in ("first", "second"):
        if moment not in memory:
            memory.update({moment: torch.zeros_like(x), f"{moment}_share": x.new_zeros(())})
    first = memory["first"].lerp(gradient, 1 - first_beta)
    second = memory["second"].mul(second_beta)
    second.addcmul_(gradient, gradient, value=1 - second_beta)
    first_share = memory["first_share"] * first_beta + (1 - first_beta)
    second_share = memory["second_share"] * second_beta + (1 - second_beta)
    memory.update(first=first, second=second, first_share=first_share, second_share=second_share)
    divisor = second.div(second_share).sqrt_().add_(config.epsilon).mul_(first_share)
    return x.mul(1 - lr * config.weight_decay).addcdiv_(first, divisor, value=-lr)
