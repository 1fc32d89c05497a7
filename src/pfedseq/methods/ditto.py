"""Ditto: a personal model beside FedAvg's, pulled towards it.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021,
Algorithm 1.

Sent down and up: θ and ω of the global w. Evaluated: the client's personal v_i, which stays local.

Deviations: the server weights clients by |D_i|, as Eq. (1) does for every method here. Both models
make the same number of passes (`local_epochs`). As in the authors' code each batch, once read,
serves a step of v_i and a step of w_i; since v_i is pulled to the w that was received, neither sees
the other's steps: w_i is FedAvg's to the last bit, and v_i without a pull is Local's.
"""

from pydantic import Field

from pfedseq.federation import Client, Method, MethodConfig, Reply, Tensors
from pfedseq.methods.fedavg import FedAvgServer
from pfedseq.methods.parts.server_steps import AveragingConfig
from pfedseq.params import Params


class PullConfig(MethodConfig):
    """The pull to the global model, in Ditto and PerAda."""

    proximal_weight: float = Field(
        0.1, ge=0, description="λ, pull of v_i to the global w; paper: 0.1 of {0.01, 0.1, 1, 10}"
    )


class DittoConfig(PullConfig, AveragingConfig):
    """Options of Ditto."""


class DittoClient(Client):
    """Trains two models: the personal v_i and the shared w_i."""

    config: PullConfig
    sent_model = "shared"

    def train(self, down: Tensors) -> Reply:
        """v_i ← v_i − η (∇L(v_i; B) + λ (v_i − w)) and w_i ← w_i − η ∇L(w_i; B) from w."""
        mine, ours, pull = self.optimizer("own"), self.optimizer("shared"), self.pull()
        received = shared = Params.of(down)
        own = self.personal(down)
        for batch in self.task.batches(self.config.local_epochs):
            own = mine.step(own, self.task.grad(own, batch) + pull * (own - received))
            shared = ours.step(shared, self.task.grad(shared, batch))
        self.state.update(own.tensors())
        return Reply(shared.tensors())

    def pull(self) -> float:
        """The factor of v_i − w in the gradient: λ, since the penalty is λ/2 ‖v_i − w‖²."""
        return self.config.proximal_weight

    def personal(self, down: Tensors) -> Params:
        """v_i, initialised with the first w received."""
        return Params.of(down | self.state)


METHOD = Method(
    name="ditto",
    server=FedAvgServer,
    client=DittoClient,
    config=DittoConfig,
    title="Ditto",
    summary="personal models pulled towards FedAvg's by a proximal term",
    training="apply to both models, each with its own optimiser; the pull is part of the "
    "gradient; optimizer_state = 'average' averages the shared model's moments",
    grid={"proximal_weight": (0.01, 0.1, 1.0, 10.0)},
)
