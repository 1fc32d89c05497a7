"""FLoRAL: a few shared LoRAs, mixed differently by each client.

Almansoori et al., "Collaborative and Efficient Personalization with Mixtures of Adaptors",
CPAL 2025.

Sent down and up: C LoRAs and ω. Evaluated: ω on W + Σ_c π_ic B_c A_c with the client's own
π_i = softmax(ρ_i); the C LoRAs form one LoRA of C times the rank.

With θ · w for θ whose B are multiplied by π_i, ∂L/∂B_c = π_ic ∂L/∂(π_ic B_c), and
∂L/∂π_ic = ⟨∂L/∂(π_ic B_c), B_c⟩ =: s_c, from which ∂L/∂ρ_ic = π_ic (s_c − Σ_d π_id s_d).

Deviations: the server weights clients by |D_i|, as Eq. (1) does for every method here; the paper's
further weighting of an adaptor by the clients' π_ic is left out, and so is the tuning of the base
model: our backbone is frozen. A client that has not trained yet uses equal weights.
"""

import torch
from pydantic import Field
from torch import Tensor

from pfedseq.federation import Client, Method, Reply, Setup, Tensors
from pfedseq.lora import Factors, factors_needed
from pfedseq.methods.fedavg import FedAvgServer
from pfedseq.methods.parts.server_steps import AveragingConfig
from pfedseq.params import Params


class FLoRALConfig(AveragingConfig):
    """Options of FLoRAL."""

    num_adapters: int = Field(2, ge=1, description="C, number of LoRAs shared by the clients")
    mixing_lr: float = Field(0.1, gt=0, description="rate of the logits ρ_i of the mixture")

    @property
    def rank_blocks(self) -> int:
        """C."""
        return self.num_adapters


class FLoRALServer(FedAvgServer):
    """FedAvg over C LoRAs."""

    def start(self, setup: Setup) -> tuple[Tensor, Tensor]:
        """θ^0 and ω^0."""
        factors_needed(setup.factors, "FLoRAL", alone=True)
        return super().start(setup)


class FLoRALClient(Client):
    """Trains the LoRAs and its mixture weights jointly."""

    config: FLoRALConfig

    def train(self, down: Tensors) -> Reply:
        """θ ← θ − η w ⊙ ∂L/∂(θ · w), ω alike; ρ_i ← ρ_i − η_ρ ∂L/∂ρ_i."""
        optimizer, phi, logits = self.optimizer(), Params.of(down), self.logits()
        for batch in self.task.batches(self.config.local_epochs):
            mixture = logits.softmax(0)
            weights = self.factors().weights(mixture)
            gradient = self.task.grad(Params(phi.adapter * weights, phi.head), batch)
            slopes = self.slopes(gradient.adapter, phi.adapter)
            logits = logits - self.config.mixing_lr * mixture * (slopes - mixture @ slopes)
            phi = optimizer.step(phi, Params(gradient.adapter * weights, gradient.head))
        self.state["logits"] = logits
        return Reply(phi.tensors())

    def personal(self, down: Tensors) -> Params:
        """(θ · w, ω)."""
        weights = self.factors().weights(self.logits().softmax(0))
        return Params(down["adapter"] * weights, down["head"])

    def mean_model(self, down: Tensors) -> Params:
        """An even mixture."""
        even = self.factors().weights(torch.full_like(self.logits(), 1 / len(self.logits())))
        return Params(down["adapter"] * even, down["head"])

    def slopes(self, gradient: Tensor, adapter: Tensor) -> Tensor:
        """∂L/∂π_ic (C,): over B_c only, since A carries no weight."""
        factors, blocks = self.factors(), self.config.num_adapters
        products = gradient * adapter * factors.mask("B", adapter)
        return torch.stack([block.sum() for block in factors.split(products, blocks)])

    def logits(self) -> Tensor:
        """ρ_i (C,)."""
        start = self.task.initial.adapter.new_zeros(self.config.num_adapters)
        return self.state.get("logits", start)

    def factors(self) -> Factors:
        """Layout of A and B of all C LoRAs."""
        return factors_needed(self.task.factors, "FLoRAL", alone=True)


METHOD = Method(
    name="floral",
    server=FLoRALServer,
    client=FLoRALClient,
    config=FLoRALConfig,
    title="FLoRAL",
    summary="a few shared LoRAs, mixed differently by each client",
    training="apply to the LoRAs and the head; the mixture's logits use plain SGD at mixing_lr",
    grid={"num_adapters": (2, 3, 4), "mixing_lr": (0.1, 1.0)},
    adapters=("lora",),
)
