"""FedRoD: a generic head that does well on every class, plus a personal head for each client.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification",
ICLR 2022, Algorithm 1 (the linear personal head).

Sent down and up: θ and the generic head ω. Evaluated: θ under ω + ω_i, the sum of the generic
and the personal head.

θ and ω are trained by balanced softmax: the cross-entropy of the logits plus log n_c, where n_c
is how many examples of class c the client has. This equals the plain loss of a head whose bias is
larger by log n_c, so its gradient is `Task.grad` at that head.

Deviations: the server weights clients by |D_i|, as Eq. (1) does for every method here. ω_i is
trained after θ and ω, on fixed features and `head_epochs` times, where the authors alternate in
every batch. A class without examples at the client gets log 1e-12 instead of log 0. The variant
whose ω_i comes from a hypernetwork is left out.
"""

import torch
from pydantic import Field
from torch import Tensor

from pfedseq.federation import Client, Method, Reply, Tensors
from pfedseq.methods.fedavg import FedAvgServer
from pfedseq.methods.parts.server_steps import AveragingConfig
from pfedseq.params import Params

ABSENT = 1e-12
"""Count used for a class without examples."""


class FedRoDConfig(AveragingConfig):
    """Options of FedRoD."""

    head_epochs: int = Field(1, ge=1, description="passes on the personal head; ours: 1")


class FedRoDClient(Client):
    """Trains (θ, ω) with balanced softmax, then a personal head on top."""

    config: FedRoDConfig
    sent_model = "generic"

    def train(self, down: Tensors) -> Reply:
        """(θ, ω) ← SGD on balanced softmax; ω_i ← SGD on the plain loss under θ and ω + ω_i."""
        optimizer, phi, prior = self.optimizer("generic"), Params.of(down), self.prior()
        for batch in self.task.batches(self.config.local_epochs):
            balanced = Params(phi.adapter, phi.head + prior)
            phi = optimizer.step(phi, self.task.grad(balanced, batch))
        start = Params(phi.adapter, phi.head + self.own_head())
        tuned = self.fit(start, self.config.head_epochs, part="head")
        self.state["own_head"] = tuned.head - phi.head
        return Reply(phi.tensors())

    def personal(self, down: Tensors) -> Params:
        """(θ, ω + ω_i)."""
        return Params(down["adapter"], down["head"] + self.own_head())

    def own_head(self) -> Tensor:
        """ω_i (H,), initially zero."""
        return self.state.get("own_head", torch.zeros_like(self.task.initial.head))

    def prior(self) -> Tensor:
        """(H,) log n_c where the head's biases are, its last C entries; zero elsewhere."""
        head = self.task.initial.head
        logs = self.task.label_counts.to(head).clamp(min=ABSENT).log()
        return torch.cat([head.new_zeros(len(head) - len(logs)), logs])


METHOD = Method(
    name="fedrod",
    server=FedAvgServer,
    client=FedRoDClient,
    config=FedRoDConfig,
    title="FedRoD",
    summary="a generic head trained with balanced softmax plus a personal head per client",
    training="apply to both phases, each with its own optimiser; optimizer_state = 'average' "
    "averages the generic model's moments",
    needs_head=True,
)
