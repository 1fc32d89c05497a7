"""The local optimiser: it owns the rates, so that a method's formula needs none."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pfedseq.params import Params, Part
from pfedseq.training.config import PLAIN, LocalTraining, Units
from pfedseq.training.rules import RULES
from pfedseq.training.rules.adamw import SECOND
from pfedseq.training.schedules import rate_factor

PARTS: tuple[Literal["adapter", "head"], ...] = ("adapter", "head")


def memory_key(model: str, part: str, what: str) -> str:
    """Under which a client's state keeps what an optimiser remembers."""
    return f"optimizer/{model}/{part}/{what}"


class LocalOptimizer:
    """Steps one model of one client through round t.

    A method hands it the whole direction, the gradient of the loss and its own pull together, so
    that both are taken at the same rate: λ means the same for adapters and heads. `state` is the
    client's memory, in which momentum and moments are found and left, where they are to be kept.
    """

    def __init__(
        self,
        config: LocalTraining,
        t: int = 1,
        state: dict[str, Tensor] | None = None,
        model: str = "model",
        units: Units = PLAIN,
        rates: tuple[float, float] | None = None,
    ) -> None:
        self.config, self.model = config, model
        factor = rate_factor(config, t)
        adapter, head = rates or config.rates(config.lr, units)
        self.rates = {"adapter": factor * adapter, "head": factor * head}
        self._state = None if config.optimizer_state == "reset" else state
        self._memory = {part: self._found(part) for part in PARTS}
        self._plain = (
            config.optimizer == "sgd"
            and not (config.momentum or config.weight_decay)
            and config.clip_norm is None
        )

    def step(
        self, phi: Params, gradient: Params, part: Part = "both", *, scale: float = 1.0
    ) -> Params:
        """φ after one step against `scale` · gradient; `part` alone moves."""
        if self._plain:
            rates = (scale * self.rates["adapter"], scale * self.rates["head"])
            return phi.taking(phi.descend(gradient, *rates), part)
        if scale != 1:
            gradient = scale * gradient
        moving = [one for one in PARTS if part in ("both", one)]
        slopes = [getattr(gradient, one) for one in moving]
        if self.config.clip_norm is not None:
            slopes = clipped(slopes, self.config.clip_norm)
        rule, moved = RULES[self.config.optimizer], phi.tensors()
        for one, slope in zip(moving, slopes, strict=True):
            memory = self._memory[one]
            moved[one] = rule(moved[one], slope, self.rates[one], memory, self.config)
            self._keep(one)
        return Params.of(moved)

    def _keep(self, part: Literal["adapter", "head"]) -> None:
        """Leave in the client's memory what the next round begins with."""
        if self._state is None:
            return
        for what, tensor in self._memory[part].items():
            if self.config.optimizer_state == "keep" or what in SECOND:
                self._state[memory_key(self.model, part, what)] = tensor

    def _found(self, part: str) -> dict[str, Tensor]:
        """What the client's memory holds of an earlier round."""
        prefix = memory_key(self.model, part, "")
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in (self._state or {}).items()
            if name.startswith(prefix)
        }


def clipped(slopes: list[Tensor], max_norm: float) -> list[Tensor]:
    """The tensors scaled down to `max_norm` if they are longer, all together.

    As `torch.nn.utils.clip_grad_norm_`, whose 1e-6 keeps a zero gradient from a division by zero.
    """
    length = torch.linalg.vector_norm(torch.stack([x.norm() for x in slopes]))
    factor = (max_norm / (length + 1e-6)).clamp(max=1.0)
    return [slope * factor for slope in slopes]
