"""FedRep: a shared representation (the adapter) and a private head for each client.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning",
ICML 2021, Algorithm 1.

Sent down and up: θ. Evaluated: the received θ with the client's own ω_i.

Deviations: the server weights clients by |D_i|, as Eq. (1) does for every method here. The head
phase fixes θ, so the features are computed once and reused (`part="head"` of `Task.grad`). With
`group_cosine`, clients that are drawn the same way share a θ (`Groups`); by default all share one.
"""

from collections.abc import Mapping, Sequence

from pydantic import Field

from pfedseq.federation import Method, Reply, Setup, Tensors
from pfedseq.methods.parts.groups import GroupingConfig, Groups
from pfedseq.methods.parts.own_head import OwnHeadClient, OwnHeadServer
from pfedseq.methods.parts.server_steps import server_steps


class FedRepConfig(GroupingConfig):
    """Options of FedRep."""

    head_epochs: int = Field(1, ge=1, description="passes on ω before the passes on θ; paper: 1")


class FedRepServer(OwnHeadServer):
    """θ ← Σ_i |D_i| / |D| · θ_i."""

    persistent = ("adapter", "groups", "steps", *OwnHeadServer.persistent)
    takes = ("adapter",)

    def __init__(self, config: FedRepConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        self.adapter = setup.initial.adapter
        self.groups = Groups(config, setup)
        self.steps = server_steps(config, adapter=self.adapter)

    def payload(self, i: int) -> Tensors:
        """The shared θ, or that of the client's group."""
        return {"adapter": self.groups.of(i, self.adapter)} | self.common_head()

    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """Average the adapters."""
        adapters, present = self.setup.stack(replies, "adapter")
        mean = self.setup.aggregate(adapters, present)
        weights = self.setup.weights(present)
        self.groups.take(t, adapters, self.adapter, mean, present, weights)
        self.adapter = self.steps["adapter"](self.adapter, mean)
        self.take_heads(replies)
        self.figures = self.groups.figures()

    def reseat(self, kept: Sequence[int], newcomers: Mapping[int, int]) -> None:
        """Newcomers get the shared θ."""
        super().reseat(kept, newcomers)
        self.groups.reseat(kept, len(newcomers))


class FedRepClient(OwnHeadClient):
    """First the head on fixed features, then the adapter under a fixed head."""

    config: FedRepConfig

    def train(self, down: Tensors) -> Reply:
        """ω_i ← SGD over ω; then θ_i ← SGD over θ from the shared θ."""
        start = self.personal(down)
        phi = self.fit(start, self.config.head_epochs, part="head")
        phi = self.fit(phi, part="adapter")
        return Reply({"adapter": phi.adapter} | self.keep_head(start, phi, down))


METHOD = Method(
    name="fedrep",
    server=FedRepServer,
    client=FedRepClient,
    config=FedRepConfig,
    title="FedRep",
    summary="shared adapter, private heads",
    training="apply to both phases, each for the part it trains",
    needs_head=True,
)
