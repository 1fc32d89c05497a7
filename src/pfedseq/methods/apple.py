"""APPLE: each client learns a weight for every client's core model.

Luo and Wu, "Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning",
IJCAI 2022, Algorithm 1.

Sent down: all N core models c_j = (θ_j, ω_j), with the prior p⁰, the client's index and λ(r) μ.
Sent up: the client's own core c_i; its relations p_i stay local. Evaluated: Σ_j p_ij c_j with
the cores just received.

Deviations: the cores start from one φ^0, not from N draws (a mean of N independent LoRA matrices A
would be 1/√N as large). Plain SGD as in the pFedSeq paper, without the authors' momentum. The
cores' rate is N η, as in PFLlib: p_ii starts near 1/N, so with η alone a core would move N times
more slowly than the models of other methods at the same rate. The core of a client that misses a
round is kept unchanged.
"""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from pfedseq.federation import Client, Method, MethodConfig, Reply, Server, Setup, Tensors
from pfedseq.params import Params


class AppleConfig(MethodConfig):
    """Options of APPLE."""

    relation_lr: float = Field(1e-3, gt=0, description="rate of p_i; paper: 0.001 of {0.001, …, 1}")
    prior_weight: float = Field(0.1, ge=0, description="μ, pull of p_i to p⁰; authors: 0.1")
    prior_share: float = Field(
        0.1, gt=0, le=1, description="L / T, share of the rounds with that pull; authors: 0.1"
    )
    prior_schedule: Literal["exponential", "cosine"] = Field(
        "exponential", description="how λ(r) falls from 1 within L rounds; authors: exponential"
    )

    def loss_schedule(self, finished_rounds: int, num_rounds: int) -> float:
        """λ(r): 1 at r = 0, falling to 0.001 (exponential) or 0 (cosine) at r = L, then 0."""
        progress = finished_rounds / (self.prior_share * num_rounds)  # r / L
        if progress >= 1:
            return 0.0
        if self.prior_schedule == "cosine":
            return (math.cos(math.pi * progress) + 1) / 2
        return float(0.001**progress)


class AppleServer(Server):
    """Keeps the N cores and sends them to everyone."""

    config: AppleConfig
    persistent = ("adapters", "heads", "finished_rounds")
    takes = ("adapter", "head")
    needs_everyone = "every client keeps a relation to each of the others"

    def __init__(self, config: AppleConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        initial, num_clients = setup.initial, setup.num_clients
        self.adapters = initial.adapter.expand(num_clients, -1, -1)  # θ_j (N, K, D)
        self.heads = initial.head.expand(num_clients, -1)  # ω_j (N, H)
        self.finished_rounds = torch.tensor(0)

    def payload(self, i: int) -> Tensors:
        """All cores, and the prior that p_i is pulled towards."""
        sizes = self.setup.all_weights.to(self.heads.dtype)
        decay = self.config.loss_schedule(int(self.finished_rounds), self.setup.num_rounds)
        return {
            "adapters": self.adapters,
            "heads": self.heads,
            "prior": (sizes / sizes.sum()).to(self.heads.device),  # p⁰ (N,)
            "prior_pull": self.heads.new_tensor(decay * self.config.prior_weight),  # λ(r) μ
            "index": torch.tensor(i),
        }

    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """Store each returned core."""
        adapters, present = self.setup.stack(replies, "adapter")
        heads, _ = self.setup.stack(replies, "head")
        self.adapters = torch.where(present[:, None, None], adapters, self.adapters)
        self.heads = torch.where(present[:, None], heads, self.heads)
        self.finished_rounds = torch.tensor(t)


class AppleClient(Client):
    """Trains its own core and its relations through the mixture of all cores."""

    config: AppleConfig
    sent_model = None  # cores are mixed, not averaged
    sends_updates = False  # it is sent all cores at once

    def train(self, down: Tensors) -> Reply:
        """One gradient g of L(Σ_j p_ij c_j) for both: c_i ← c_i − N η p_ii g, and p_i."""
        cores, relations, i = all_cores(down), self.relations(down), int(down["index"])
        prior, pull, unflat = down["prior"], down["prior_pull"], self.task.initial.unflat
        optimizer, core = self.optimizer(), unflat(cores[i])
        for batch in self.task.batches(self.config.local_epochs):
            g = self.task.grad(unflat(relations @ cores), batch)
            slope = cores @ g.flat()  # ⟨g, c_j⟩ (N,)
            slope = slope + 2 * pull * (relations - prior)  # + 2 λ(r) μ (p_ij − p⁰_j)
            core = optimizer.step(core, g, scale=len(cores) * float(relations[i]))
            cores[i] = core.flat()
            relations = relations - self.config.relation_lr * slope
        self.state["relations"] = relations
        return Reply(core.tensors())

    def personal(self, down: Tensors) -> Params:
        """Σ_j p_ij c_j."""
        return self.task.initial.unflat(self.relations(down) @ all_cores(down))

    def relations(self, down: Tensors) -> Tensor:
        """p_i (N,), which starts as p⁰."""
        return self.state.get("relations", down["prior"])


def all_cores(down: Tensors) -> Tensor:
    """The cores as rows of a new matrix (N, K·D + H)."""
    return torch.cat([down["adapters"].flatten(1), down["heads"]], dim=1)


METHOD = Method(
    name="apple",
    server=AppleServer,
    client=AppleClient,
    config=AppleConfig,
    title="APPLE",
    summary="learned mixtures of all core models",
    training="apply to the core; relations use plain SGD at relation_lr; "
    "optimizer_state = 'average' is refused: cores are mixed, not averaged",
    grid={"relation_lr": (0.001, 0.01, 0.1, 1.0)},
)
