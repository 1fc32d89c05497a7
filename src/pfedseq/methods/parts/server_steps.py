"""Server optimisers: take the mean as it is, or step towards it with momentum, Adam or Yogi.

With Δ = mean − x, where x was sent to the clients, and rates η and β:

- plain (the default): x ← mean.
- momentum (FedAvgM; Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for
  Federated Visual Classification", 2019): v ← β v + Δ, x ← x + η v; as Nesterov's,
  x ← x + η (Δ + β v).
- FedAdam and FedYogi (Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2):
  m ← β m + (1 − β) Δ, u ← β₂ u + (1 − β₂) Δ² or, Yogi, u ← u − (1 − β₂) Δ² sign(u − Δ²),
  x ← x + η m / (√u + ε), starting from u = ε², without bias correction.
- GHBM at the server (Zaccone et al., "Communication-Efficient Heterogeneous Federated Learning with
  Generalized Heavy-Ball Momentum", TMLR 2025): x ← x + η Δ − β m with m = (x^{t−τ} − x^t) / τ, the
  mean step back over the last τ rounds. With τ = 1 and η = 1 it is momentum.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from pfedseq.federation import MethodConfig


class AveragingConfig(MethodConfig):
    """Options of every method whose server averages."""

    server_optimizer: Literal["sgd", "adam", "yogi", "ghbm"] = Field(
        "sgd",
        description="how the server steps towards the mean; `sgd` with default options adopts "
        "the mean "
        "unchanged",
    )
    server_lr: float = Field(1.0, gt=0, description="η, the server's rate")
    server_momentum: float = Field(
        0.0, ge=0, lt=1, description="β of momentum (FedAvgM), Adam, Yogi or GHBM"
    )
    server_nesterov: bool = Field(False, description="Nesterov's form of momentum")
    server_decay: float = Field(
        0.99, ge=0, lt=1, description="β₂ of Adam and Yogi; Reddi et al.: 0.99"
    )
    server_epsilon: float = Field(
        1e-3, gt=0, description="ε of Adam and Yogi; larger is less adaptive; Reddi et al.: 0.001"
    )
    server_window: int = Field(
        10, ge=1, description="τ, rounds that GHBM looks back; authors: 1 / participation rate"
    )

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Self:
        if self.server_nesterov and (self.server_optimizer != "sgd" or not self.server_momentum):
            raise ValueError("server_nesterov is a form of momentum: set server_momentum, with sgd")
        return self


class PastModels(nn.Module):
    """The last τ models sent to the clients, for GHBM's m."""

    past: Tensor
    count: Tensor

    def __init__(self, window: int, like: Tensor) -> None:
        super().__init__()
        self.register_buffer("past", like.new_zeros(window, *like.shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def momentum(self, model: Tensor) -> Tensor:
        """m = (x^{t−τ} − x^t) / τ for x^t = `model`; zero until there is an x^{t−τ}."""
        window, count = len(self.past), int(self.count)
        if count < window:
            return torch.zeros_like(model)
        return (self.past[count % window] - model) / window

    def append(self, model: Tensor) -> None:
        """Append the model of the round that ends."""
        past = self.past.clone()
        past[int(self.count) % len(past)] = model
        self.past, self.count = past, self.count + 1


class ServerStep(nn.Module):
    """Steps one tensor from round to round; its state is in buffers."""

    velocity: Tensor
    squares: Tensor

    def __init__(self, config: Any, like: Tensor) -> None:
        super().__init__()
        self.config = config if isinstance(config, AveragingConfig) else AveragingConfig()
        self.kind = self.config.server_optimizer
        if self.kind in ("adam", "yogi") or self.config.server_momentum:
            self.register_buffer("velocity", torch.zeros_like(like))
        if self.kind in ("adam", "yogi"):
            self.register_buffer("squares", torch.full_like(like, self.config.server_epsilon**2))
        self.past = (
            PastModels(self.config.server_window, like) if self.kind == "ghbm" else nn.Identity()
        )

    def forward(self, x: Tensor, mean: Tensor) -> Tensor:
        """x of the next round, from this round's x and the mean of the replies."""
        rate, beta = self.config.server_lr, self.config.server_momentum
        if self.kind == "sgd" and rate == 1 and not beta:
            return mean
        delta = mean - x
        match self.kind:
            case "sgd":
                step = delta
                if beta:
                    self.velocity = beta * self.velocity + delta
                    step = self.velocity
                if self.config.server_nesterov:
                    step = delta + beta * self.velocity
                return x + rate * step
            case "ghbm":
                assert isinstance(self.past, PastModels)
                momentum = self.past.momentum(x)
                self.past.append(x)
                return x + rate * delta - beta * momentum
        self.velocity = beta * self.velocity + (1 - beta) * delta
        new, decay = delta.square(), self.config.server_decay
        if self.kind == "adam":
            self.squares = decay * self.squares + (1 - decay) * new
        else:
            self.squares = self.squares - (1 - decay) * new * torch.sign(self.squares - new)
        return x + rate * self.velocity / (self.squares.sqrt() + self.config.server_epsilon)


def server_steps(config: Any, **tensors: Tensor) -> nn.ModuleDict:
    """One step for each of a server's tensors, by name."""
    return nn.ModuleDict({name: ServerStep(config, like) for name, like in tensors.items()})
