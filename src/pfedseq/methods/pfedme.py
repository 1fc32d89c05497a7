"""pFedMe: personal models kept near a global one by a Moreau envelope.

T. Dinh et al., "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020,
Algorithm 1.

Sent down: θ and ω of w. Sent up: θ and ω of w_i. Evaluated: the client's own θ_i (here `inner`),
the solution of the inner problem at the last batch it trained on.

Deviations: the server weights clients by |D_i|, as Eq. (1) does for every method here. A round is
`local_epochs` passes over the data, where the authors' R is a number of batches. As in their code,
the inner gradient carries a weight decay, and the inner problem of each batch starts from the
solution of the batch before. Their inner rate of 0.09 diverges on a ViT's features (curvature up to
85 was measured, and η_p (λ + curvature) must stay below 2). η_p is `lr`, and `head_lr` for ω, as in
every gradient step on the loss. The step of w_i towards θ_i (`outer_lr`) is a weighted mean of the
two, stable for every η λ ≤ 1, and the same for adapters and heads.
"""

from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from pfedseq.errors import InputError
from pfedseq.federation import Batch, Client, Method, MethodConfig, Reply, Tensors
from pfedseq.methods.fedavg import FedAvgServer
from pfedseq.params import Params


class PFedMeConfig(MethodConfig):
    """Options of pFedMe."""

    outer_lr: float = Field(
        0.005,
        gt=0,
        description="η, w_i ← w_i − η λ (w_i − θ_i); paper: 0.005, DomainNet and Omniglot 0.01, "
        "of {0.001, 0.005, 0.01, 0.05}",
    )
    proximal_weight: float = Field(15.0, gt=0, description="λ, pull of θ_i to w_i; authors: 15")
    inner_steps: int = Field(5, ge=1, description="K, steps of θ_i on each batch; authors: 5")
    inner_decay: float = Field(
        1e-3, ge=0, description="μ, decay of θ_i; 0.001 in the authors' code, 0 in their paper"
    )
    server_rate: float = Field(
        1.0, gt=0, description="β, share of the clients' mean in the new w; authors: 1"
    )

    @model_validator(mode="after")
    def _steps_do_not_overshoot(self) -> Self:
        if self.outer_lr * self.proximal_weight > 1:
            raise ValueError(overshoot("outer_lr", self.outer_lr * self.proximal_weight, 1))
        return self


def overshoot(rate: str, product: float, limit: float) -> str:
    """The error message for two options whose product is too large."""
    return (
        f"{rate} · proximal_weight is {product:.3g} and must not exceed {limit}, or the steps "
        "overshoot: lower one of the two"
    )


class PFedMeServer(FedAvgServer):
    """w ← (1 − β) w + β Σ_i |D_i| / |D| · w_i."""

    config: PFedMeConfig

    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """Move towards the clients' mean."""
        adapter, head, rate = self.adapter, self.head, self.config.server_rate
        super().update(t, replies)
        self.adapter = (1 - rate) * adapter + rate * self.adapter
        self.head = (1 - rate) * head + rate * self.head


class PFedMeClient(Client):
    """For each batch: solve for θ_i near w_i, then move w_i towards θ_i."""

    config: PFedMeConfig

    def train(self, down: Tensors) -> Reply:
        """θ_i ≈ argmin L(θ; B) + λ/2 ‖θ − w_i‖²; w_i ← w_i − η λ (w_i − θ_i)."""
        optimizer = self.optimizer(rates=(self.config.outer_lr, self.config.outer_lr))
        inner = local = Params.of(down)  # θ_i, w_i
        for batch in self.task.batches(self.config.local_epochs):
            inner = self.solve(inner, local, batch)
            local = optimizer.step(local, local - inner, scale=self.config.proximal_weight)
        self.state.update(inner.tensors())
        return Reply(local.tensors())

    def solve(self, inner: Params, local: Params, batch: Batch) -> Params:
        """K gradient steps on L(θ; B) + λ/2 ‖θ − w_i‖² + μ/2 ‖θ‖²."""
        weight, decay = self.config.proximal_weight, self.config.inner_decay
        rates = self.rates(self.config.lr)
        if max(rates) * weight > 2:
            raise InputError(overshoot("pfedme's lr or head_lr", max(rates) * weight, 2))
        for _ in range(self.config.inner_steps):
            gradient = self.task.grad(inner, batch) + weight * (inner - local) + decay * inner
            inner = self.descend(inner, gradient, self.config.lr)
        return inner

    def personal(self, down: Tensors) -> Params:
        """θ_i; before the client's first training, the received w."""
        return Params.of(down | self.state)


METHOD = Method(
    name="pfedme",
    server=PFedMeServer,
    client=PFedMeClient,
    config=PFedMeConfig,
    title="pFedMe",
    summary="personal models tied to a global one by a Moreau envelope",
    training="apply to the step of w_i, with one rate for adapters and heads; the inner steps "
    "are plain SGD at lr, bounded by max_step unless optimizer = 'adamw'",
)
