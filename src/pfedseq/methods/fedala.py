"""FedALA: each client mixes the global model into its own, element by element.

Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI 2023,
Algorithm 1.

Sent down: θ and ω of the global w, once a round, in a separate step (`receive`). Sent up: θ and ω
of w_i. Evaluated: ŵ_i, the mixture that the client makes once, on receipt, and trains from in the
next round.

Deviations: the adaptive aggregation (ALA) covers adapter and head (`part`); the pFedSeq paper says
"adapters attached at all layers" and leaves the head open. It uses the first s % of a fresh random
order, rounded up; the authors' code takes a contiguous slice, rounded down. The first ALA stops
after `max_first_passes` if it has not converged. A client that missed `receive` gets w with its
next training and mixes it in then.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import pstdev

import torch
from pydantic import Field
from torch import Tensor

from pfedseq.federation import Client, Clients, Method, Part, Reply, Setup, Tensors
from pfedseq.methods.fedavg import FedAvgServer
from pfedseq.methods.parts.server_steps import AveragingConfig
from pfedseq.params import Params

RECENT_PASSES = 10
"""Passes whose losses must be close for the first ALA to have converged; authors: 10."""


class FedALAConfig(AveragingConfig):
    """Options of FedALA."""

    weight_lr: float = Field(0.1, gt=0, description="η_A, rate of W; paper: 0.1 of {0.001, …, 1}")
    data_share: float = Field(
        0.8, gt=0, le=1, description="s, share of D_i that ALA uses; authors: 0.8"
    )
    part: Part = Field(
        "both",
        description="what ALA mixes; the rest is taken from the global model; authors: "
        "upper layers",
    )
    threshold: float = Field(
        1.0, gt=0, description="spread of losses that ends the first ALA; paper: 1"
    )
    max_first_passes: int = Field(
        100, ge=1, description="upper limit on the passes of the first ALA"
    )


class FedALAServer(FedAvgServer):
    """FedAvg's, but the new model goes out at the end of the round, to be mixed before testing."""

    persistent = (*FedAvgServer.persistent, "informed")

    def __init__(self, config: FedALAConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        self.informed = torch.ones(setup.num_clients, dtype=torch.bool)  # φ^0 is known to all

    def run_round(self, t: int, clients: Clients) -> None:
        """Train from ŵ_i, average, send w; clients that missed the last w get it with `train`."""
        present = clients.participants(t)
        down = {i: {} if self.informed[i] else self.payload(i) for i in present}
        if replies := clients.call("train", t, down):
            self.update(t, replies)
        answered = clients.call("receive", t, {i: self.payload(i) for i in present})
        self.informed = torch.tensor([i in answered for i in range(self.setup.num_clients)])

    def reseat(self, kept: Sequence[int], newcomers: Mapping[int, int]) -> None:
        """A newcomer gets w with its first training."""
        super().reseat(kept, newcomers)
        joined = torch.zeros(len(newcomers), dtype=torch.bool)
        self.informed = torch.cat([self.informed[list(kept)], joined])


class FedALAClient(Client):
    """Keeps its model w_i (ŵ_i between receipt and training) and the weights W_i, both flat."""

    config: FedALAConfig
    steps = (*Client.steps, "receive")
    sends_updates = False  # it trains from a mixture of its own

    def train(self, down: Tensors) -> Reply:
        """w_i ← SGD(ŵ_i; D_i)."""
        if down:
            self.receive(down)
        phi = self.fit(self.personal(down))
        self.state["model"] = phi.flat()
        return Reply(phi.tensors())

    def receive(self, down: Tensors) -> Reply:
        """w_i ← ŵ_i; the first model received is adopted unchanged."""
        new = Params.of(down).flat()
        if "model" in self.state:
            new, self.state["weights"] = self.aggregate(self.state["model"], new)
        self.state["model"] = new
        return Reply()

    def aggregate(self, own: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        """ŵ = w_i + (w − w_i) ⊙ W, W ← clip(W − η_A ∇L(ŵ) ⊙ (w − w_i), 0, 1); gives ŵ and W.

        One pass over the sample; the first time, passes until convergence.
        """
        first = "weights" not in self.state
        weights = self.state.get("weights", torch.ones_like(own))
        batches, losses = self.sample(), list[float]()
        for _ in range(self.config.max_first_passes if first else 1):
            for batch in batches:
                mixed = self.task.initial.unflat(torch.lerp(own, new, weights))
                slope = self.task.grad(mixed, batch, self.config.part).flat() * (new - own)
                weights = (weights - self.config.weight_lr * slope).clamp(0, 1)
            if first:
                losses.append(self.task.loss(mixed, batches[-1]))
                recent = losses[-RECENT_PASSES:]
                if len(losses) > RECENT_PASSES and pstdev(recent) < self.config.threshold:
                    break
        return torch.lerp(own, new, weights), weights

    def sample(self) -> list[Tensor]:
        """Batches of s % of the training data, in a random order."""
        batches = list(self.task.batches(1))
        order, size = torch.cat(batches), len(batches[0])
        order = order[: math.ceil(self.config.data_share * len(order))]
        return [order[start : start + size] for start in range(0, len(order), size)]

    def personal(self, down: Tensors) -> Params:
        """ŵ_i; the initial model before the first round."""
        if "model" in self.state:
            return self.task.initial.unflat(self.state["model"])
        return Params.of(down) if down else self.task.initial


METHOD = Method(
    name="fedala",
    server=FedALAServer,
    client=FedALAClient,
    config=FedALAConfig,
    title="FedALA",
    summary="learned elementwise mixing",
    training="apply to training; the mixing weights use plain SGD at weight_lr",
    grid={"weight_lr": (0.001, 0.01, 0.1, 1.0)},
)
