"""GHBM: FedAvg with heavy-ball momentum over a window of rounds, applied in the clients' steps.

Zaccone et al., "Communication-Efficient Heterogeneous Federated Learning with Generalized
Heavy-Ball Momentum", TMLR 2025, Algorithm 1.

Sent down: θ and ω, and m of their size. Sent up: θ and ω. Evaluated: the global φ on each client's
data.

m = (φ^{t−τ} − φ^t) / τ is the mean step back over the last τ rounds, and zero in the first τ
rounds. Each of a client's J local steps also moves by −β m / J, so that a round adds β (φ^t −
φ^{t−τ}) / τ. The window τ lets every client contribute to m although only some participate in a
round.

Deviations: the server weights clients by |D_i|, as Eq. (1) does for every method here. The variants
in which a client stores its former model instead of receiving m (LocalGHBM, FedHBM) are left out.
"""

from collections.abc import Mapping

from pydantic import Field

from pfedseq.federation import Method, MethodConfig, Reply, Setup, Tensors
from pfedseq.methods.fedavg import FedAvgClient, FedAvgServer
from pfedseq.methods.parts.server_steps import PastModels
from pfedseq.params import Params


class GHBMConfig(MethodConfig):
    """Options of GHBM."""

    server_momentum: float = Field(0.9, ge=0, lt=1, description="β; authors: 0.9")
    server_window: int = Field(
        10, ge=1, description="τ, rounds that m looks back; authors: 1 / participation rate"
    )


class GHBMServer(FedAvgServer):
    """FedAvg's server; stores the last τ models."""

    config: GHBMConfig
    persistent = (*FedAvgServer.persistent, "past")

    def __init__(self, config: GHBMConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        self.past = PastModels(config.server_window, setup.initial.flat())

    def payload(self, i: int) -> Tensors:
        """The global φ and m."""
        model = Params(self.adapter, self.head).flat()
        return {**self.mean(), "momentum": self.past.momentum(model)}

    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """Store the model that was sent, then average."""
        before = Params(self.adapter, self.head).flat()
        super().update(t, replies)
        self.past.append(before)


class GHBMClient(FedAvgClient):
    """Local SGD that drifts along −m."""

    config: GHBMConfig

    def train(self, down: Tensors) -> Reply:
        """φ_i ← φ_i − η ∇L(φ_i; B) − β m / J."""
        optimizer, phi = self.optimizer(), Params.of(down)
        momentum = phi.unflat(down["momentum"])
        batches = list(self.task.batches(self.config.local_epochs))
        for batch in batches:
            phi = optimizer.step(phi, self.task.grad(phi, batch))
            phi = phi.descend(momentum, self.config.server_momentum / len(batches))
        return Reply(phi.tensors())


METHOD = Method(
    name="ghbm",
    server=GHBMServer,
    client=GHBMClient,
    config=GHBMConfig,
    title="GHBM",
    summary="FedAvg with heavy-ball momentum over a window of rounds",
    training="apply to the gradient; the drift along −m is added to each step as it is",
    grid={"server_momentum": (0.5, 0.7, 0.9), "server_window": (1, 3, 10)},
)
