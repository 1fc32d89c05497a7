"""FedAvg: one adapter and one head for all clients, the weighted mean of theirs.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, Algorithm 1.

Sent down and up: θ and ω. Evaluated: the global φ on each client's data.

Deviations: only the adapter and the head are tuned and averaged; the backbone is frozen.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from pfedseq.federation import (
    Client,
    Method,
    MethodConfig,
    Reply,
    Server,
    Setup,
    Tensors,
)
from pfedseq.methods.parts.server_steps import AveragingConfig, server_steps
from pfedseq.params import Params


class FedAvgServer(Server):
    """φ ← Σ_i |D_i| / |D| · φ_i, or a step towards it (`server_steps`)."""

    persistent: ClassVar[tuple[str, ...]] = ("adapter", "head", "steps")

    def __init__(self, config: MethodConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        self.adapter, self.head = self.start(setup)
        self.steps = server_steps(config, adapter=self.adapter, head=self.head)

    def start(self, setup: Setup) -> tuple[Tensor, Tensor]:
        """θ^0 and ω^0."""
        return setup.initial.adapter, setup.initial.head

    def payload(self, i: int) -> Tensors:
        """The global φ."""
        return self.mean()

    def mean(self) -> Tensors:
        """The global φ, which subclasses personalise."""
        return {"adapter": self.adapter, "head": self.head}

    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """Average the replies."""
        adapters, present = self.setup.stack(replies, "adapter", self.adapter)
        heads, _ = self.setup.stack(replies, "head")
        self.adapter = self.steps["adapter"](self.adapter, self.setup.aggregate(adapters, present))
        self.head = self.steps["head"](self.head, self.setup.aggregate(heads, present))

    def expected(self, step: str) -> Tensors:
        """A φ to average."""
        return {"adapter": self.adapter, "head": self.head} if step == "train" else {}


class FedAvgClient(Client):
    """Local SGD from the global φ."""

    config: MethodConfig

    def train(self, down: Tensors) -> Reply:
        """φ_i ← SGD(φ; D_i)."""
        phi = self.fit(self.personal(down))
        return Reply(phi.tensors())

    def personal(self, down: Tensors) -> Params:
        """The global φ: FedAvg has nothing personal."""
        return Params.of(down)

    def evaluate_mean(self, down: Tensors) -> Reply:
        """Nothing to add: `evaluate` already scores the mean."""
        return Reply()


METHOD = Method(
    name="fedavg",
    server=FedAvgServer,
    client=FedAvgClient,
    config=AveragingConfig,
    title="FedAvg",
    summary="one global adapter and head",
)
