"""The local optimiser: it owns the rates, so that a method's formula needs none."""

from pfedseq.params import Params, Part
from pfedseq.training.config import LocalTraining


class LocalOptimizer:
    """Steps one model of one client through one round.

    A method hands it the whole direction, the gradient of the loss and its own pull together, so
    that both are taken at the same rate: λ means the same for adapters and heads.
    """

    def __init__(self, config: LocalTraining, *, same_rate: bool = False) -> None:
        self.lr = config.lr
        self.head_lr = config.lr if same_rate or config.head_lr is None else config.head_lr

    def step(
        self, phi: Params, gradient: Params, part: Part = "both", *, scale: float = 1.0
    ) -> Params:
        """φ after one step against `scale` · gradient; `part` alone moves."""
        moved = phi.descend(gradient, scale * self.lr, scale * self.head_lr)
        return phi.taking(moved, part)
