"""GHBM: FedAvg with heavy-ball momentum over a window of rounds, which the clients take in.

Zaccone et al., "Communication-Efficient Heterogeneous Federated Learning with Generalized
Heavy-Ball Momentum", TMLR 2025, Algorithm 1.

Sent down: θ and ω, and m of their size. Sent up: θ and ω. Evaluated: the global φ on each client's
data.

m = (φ^{t−τ} − φ^t) / τ is the mean step back over the last τ rounds, and zero before there are so
many. Each of a client's J local steps also goes −β m / J, so that a round goes on by
β (φ^t − φ^{t−τ}) / τ. The window τ lets every client have its say in m although only some take part
in a round.

Deviations: the server weighs clients by |D_i|, as Eq. (1) does for every method here. The variants
in which a client keeps its former model in place of receiving m (LocalGHBM, FedHBM) are left out.
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
        10, ge=1, description="τ, rounds that m looks back; authors: 1 / share of participants"
    )


class GHBMServer(FedAvgServer):
    """FedAvg's, with the last τ models."""

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
        """Keep what was sent out, and average."""
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
    grid={"server_momentum": (0.5, 0.7, 0.9), "server_window": (1, 3, 10)},
)
