"""Two LoRAs side by side as one θ of twice the rank: a shared one and a private one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfedseq.federation import Task
from pfedseq.lora import Factors, factors_needed
from pfedseq.params import Params


def first_block(factors: Factors | None, initial: Params, method: str, blocks: int) -> Tensor:
    """θ (K, D / blocks) of the first LoRA of φ^0, which is the θ^0 of every other method."""
    return factors_needed(factors, method, alone=True).split(initial.adapter, blocks)[0]


@dataclass(frozen=True)
class TwoLoRAs:
    """Weights the first LoRA's product by 1 − a and the second's by a."""

    factors: Factors
    own_weight: float

    @classmethod
    def of(cls, task: Task, method: str, own_weight: float) -> TwoLoRAs:
        """The pair of LoRAs in a client's θ."""
        return cls(factors_needed(task.factors, method, alone=True), own_weight)

    def alone(self, first: Params) -> Params:
        """φ of the first LoRA at full weight; the second is zero in both factors."""
        adapters = [first.adapter, torch.zeros_like(first.adapter)]
        return Params(self.factors.join(adapters), first.head)

    def first_gradient(self, gradient: Params) -> Params:
        """∂L/∂(first LoRA, ω), from the gradient at `alone`."""
        return Params(self.factors.split(gradient.adapter, 2)[0], gradient.head)

    def beside(self, first: Tensor, own: Params) -> Params:
        """φ of both LoRAs, each with its weight, under the second's head."""
        joined = self.factors.join([first, own.adapter])
        return Params(joined * self._weights(joined), own.head)

    def second_gradient(self, gradient: Params) -> Params:
        """∂L/∂(second LoRA, its head), from the gradient at `beside`."""
        weighted = gradient.adapter * self._weights(gradient.adapter)
        return Params(self.second(weighted), gradient.head)

    def second(self, adapter: Tensor) -> Tensor:
        """The second LoRA, taken from a θ that holds both."""
        return self.factors.split(adapter, 2)[1]

    def _weights(self, like: Tensor) -> Tensor:
        return self.factors.weights(like.new_tensor([1 - self.own_weight, self.own_weight]))
