"""The local optimiser. It owns the learning rates, so that methods need none."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pfedseq.params import Params, Part
from pfedseq.training.config import PLAIN, LocalTraining, Units
from pfedseq.training.rules import RULES
from pfedseq.training.rules.adamw import SECOND
from pfedseq.training.schedules import rate_factor

TINY = 5e-7
"""Share of a bound that is added to a length, so that nothing is divided by zero."""
PARTS: tuple[Literal["adapter", "head"], ...] = ("adapter", "head")


def memory_key(model: str, part: str, what: str) -> str:
    """The key of an optimiser's state in a client's state."""
    return f"optimizer/{model}/{part}/{what}"


class LocalOptimizer:
    """Steps one model of one client through round t.

    A method passes the complete direction, the gradient of the loss plus its own pull, so that both
    use the same rate: λ means the same for adapters and heads. Momentum and moments are read from
    and written to `state`, the client's memory, if they are kept between rounds.
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
        self._units, self._lr = units, factor * config.lr
        self._bounded = rates is None and (config.clip_norm > 0 or config.max_step > 0)
        self._plain = config.optimizer == "sgd" and not (
            config.momentum or config.weight_decay or self._bounded
        )

    def step(
        self, phi: Params, gradient: Params, part: Part = "both", *, scale: float = 1.0
    ) -> Params:
        """φ after one step against `scale` · gradient; only `part` changes."""
        if self._plain:
            rates = (scale * self.rates["adapter"], scale * self.rates["head"])
            return phi.taking(phi.descend(gradient, *rates), part)
        if scale != 1:
            gradient = scale * gradient
        if self._bounded:
            gradient = bounded(gradient, self.config, self._lr, self._units, part)
        rule, moved = RULES[self.config.optimizer], phi.tensors()
        for one in _parts(part):
            slope, memory = getattr(gradient, one), self._memory[one]
            moved[one] = rule(moved[one], slope, self.rates[one], memory, self.config)
            self._keep(one)
        return Params.of(moved)

    def _keep(self, part: Literal["adapter", "head"]) -> None:
        """Store in the client's state what the next round starts with."""
        if self._state is None:
            return
        for what, tensor in self._memory[part].items():
            if self.config.optimizer_state == "keep" or what in SECOND:
                self._state[memory_key(self.model, part, what)] = tensor

    def _found(self, part: str) -> dict[str, Tensor]:
        """The optimiser's state from an earlier round, if any."""
        prefix = memory_key(self.model, part, "")
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in (self._state or {}).items()
            if name.startswith(prefix)
        }


def bounded(
    gradient: Params,
    config: LocalTraining,
    lr: float,
    units: Units = PLAIN,
    part: Part = "both",
) -> Params:
    """Scale a gradient down so that neither `part` of it nor the step at rate `lr` is too long.

    In units of the model the adapter's length is divided by α/r and the head's by |f|, to which
    they are proportional, so that one bound suits every model. Multiplied by the configured rates,
    these are the lengths of the change of the adapted weights and, without the √C of head rates, of
    an example's logits. Momentum and weight decay come afterwards: with momentum μ, steps can be
    1 / (1 − μ) times as long. AdamW's steps have the length of its rate and are not bounded.
    """
    adapter, head, _ = PLAIN if config.rate_units == "plain" else units
    unit = {"adapter": adapter, "head": head}
    lengths = {one: getattr(gradient, one).norm() / unit[one] for one in _parts(part)}
    rates = {"adapter": lr, "head": lr * config.head_ratio}
    factors = []
    if config.clip_norm:
        factors.append(_factor(config.clip_norm, list(lengths.values())))
    if config.max_step and config.optimizer == "sgd":
        steps = [rates[one] * length for one, length in lengths.items()]
        factors.append(_factor(config.max_step, steps))
    if not factors:
        return gradient
    factor = torch.stack(factors).amin().clamp(max=1.0)
    return Params(factor * gradient.adapter, factor * gradient.head)


def _factor(bound: float, lengths: list[Tensor]) -> Tensor:
    """Factor that makes parts of these lengths together as long as the bound."""
    length: Tensor = torch.linalg.vector_norm(torch.stack(lengths))
    return bound / (length + TINY * bound)


def _parts(part: Part) -> list[Literal["adapter", "head"]]:
    return [one for one in PARTS if part in ("both", one)]
