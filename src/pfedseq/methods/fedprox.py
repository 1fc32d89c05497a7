"""FedProx: FedAvg whose clients are pulled back to the received model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Algorithm 2.

Sent down and up: θ and ω. Evaluated: the global φ on each client's data.

Deviations: the server weights clients by |D_i|, as Eq. (1) does for every method here, where the
paper samples them with that probability. Every client makes the same passes; the paper's
stragglers, which make fewer, are left out.
"""

from pydantic import Field

from pfedseq.federation import Method, Reply, Tensors
from pfedseq.methods.fedavg import FedAvgClient, FedAvgServer
from pfedseq.methods.parts.server_steps import AveragingConfig
from pfedseq.params import Params


class FedProxConfig(AveragingConfig):
    """Options of FedProx."""

    proximal_weight: float = Field(
        0.01, ge=0, description="μ, pull to the received φ; authors: of {0.001, 0.01, 0.1, 1}"
    )


class FedProxClient(FedAvgClient):
    """Local training of L(φ_i) + μ/2 ‖φ_i − φ‖²."""

    config: FedProxConfig

    def train(self, down: Tensors) -> Reply:
        """φ_i ← φ_i − η (∇L(φ_i; B) + μ (φ_i − φ))."""
        optimizer, pull = self.optimizer(), self.config.proximal_weight
        received = phi = Params.of(down)
        for batch in self.task.batches(self.config.local_epochs):
            phi = optimizer.step(phi, self.task.grad(phi, batch) + pull * (phi - received))
        return Reply(phi.tensors())


METHOD = Method(
    name="fedprox",
    server=FedAvgServer,
    client=FedProxClient,
    config=FedProxConfig,
    title="FedProx",
    summary="FedAvg with a proximal term towards the received model",
    training="apply to every local step; the pull is part of the gradient",
    grid={"proximal_weight": (0.001, 0.01, 0.1, 1.0)},
)
