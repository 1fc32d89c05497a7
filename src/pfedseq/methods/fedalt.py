"""FedALT: each client keeps training its own LoRA beside the frozen mean of the others'.

Bian et al., "FedALT: Federated Fine-Tuning through Adaptive Local Training with Rest-of-World
LoRA", AAAI 2026.

Sent down: the mean of the other clients' LoRAs, A and B each. Sent up: the client's own LoRA.
Evaluated: the client's ω_i on W + (1 − a) B_o A_o + a B_i A_i, both LoRAs side by side as one of
twice the rank.

Deviations: the weights are fixed; the paper's mixer, which learns them for every token, is left
out. The paper's language models have no head: here ω_i is the client's own. A client that has
not sent a LoRA yet is left out of the means; an absent client counts with the last LoRA it sent.
"""

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field

from pfedseq.federation import Client, Method, MethodConfig, Reply, Server, Setup, Tensors
from pfedseq.methods.parts.lora_blocks import TwoLoRAs, first_block
from pfedseq.params import Params


class FedALTConfig(MethodConfig):
    """Options of FedALT."""

    own_weight: float = Field(
        0.5,
        ge=0,
        le=1,
        description="a, weight of the client's own LoRA; the others' mean has 1 − a",
    )

    @property
    def rank_blocks(self) -> int:
        """The others' LoRA and the client's own."""
        return 2


class FedALTServer(Server):
    """Σ_{j ≠ i} θ_j / (N − 1) for client i."""

    persistent = ("adapters", "known")

    def __init__(self, config: FedALTConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        self.initial = first_block(setup.factors, setup.initial, "FedALT", 2)
        self.adapters = torch.zeros_like(self.initial).repeat(setup.num_clients, 1, 1)
        self.known = torch.zeros(setup.num_clients, dtype=torch.bool, device=self.initial.device)

    def payload(self, i: int) -> Tensors:
        """The mean over the other clients' LoRAs; before any has come, one with product zero."""
        others = self.known.clone()
        others[i] = False
        if not others.any():
            return {"others": self.initial}
        return {"others": self.setup.aggregate(self.adapters, others, weighted=False)}

    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """Keep every client's last LoRA."""
        adapters, present = self.setup.stack(replies, "adapter", self.initial)
        self.adapters = torch.where(present[:, None, None], adapters, self.adapters)
        self.known = self.known | present

    def expected(self, step: str) -> Tensors:
        """A LoRA of the configured rank."""
        return {"adapter": self.initial} if step == "train" else {}

    def reseat(self, kept: Sequence[int], newcomers: Mapping[int, int]) -> None:
        """Newcomers have sent nothing yet."""
        super().reseat(kept, newcomers)
        joined = torch.zeros_like(self.initial).expand(len(newcomers), -1, -1)
        self.adapters = torch.cat([self.adapters[list(kept)], joined])
        self.known = torch.cat([self.known[list(kept)], self.known.new_zeros(len(newcomers))])


class FedALTClient(Client):
    """Trains its own LoRA and head; the others' LoRA is frozen."""

    config: FedALTConfig
    sent_model = None  # no client continues from a mean
    sends_updates = False  # it is sent the others' LoRA, and sends its own

    def train(self, down: Tensors) -> Reply:
        """(θ_i, ω_i) ← SGD on W + (1 − a) B_o A_o + a B_i A_i."""
        both, own, optimizer = self.loras(), self.own(), self.optimizer()
        for batch in self.task.batches(self.config.local_epochs):
            gradient = self.task.grad(both.beside(down["others"], own), batch)
            own = optimizer.step(own, both.second_gradient(gradient))
        self.state.update(own.tensors())
        return Reply({"adapter": own.adapter})

    def personal(self, down: Tensors) -> Params:
        """Both LoRAs, each with its weight, under the client's own head."""
        return self.loras().beside(down["others"], self.own())

    def own(self) -> Params:
        """θ_i and ω_i."""
        initial = self.task.initial
        own = Params(self.loras().second(initial.adapter), initial.head)
        return Params.of(own.tensors() | self.state)

    def loras(self) -> TwoLoRAs:
        """How the two LoRAs are laid out in one θ."""
        return TwoLoRAs.of(self.task, "FedALT", self.config.own_weight)


METHOD = Method(
    name="fedalt",
    server=FedALTServer,
    client=FedALTClient,
    config=FedALTConfig,
    title="FedALT",
    summary="a personal LoRA beside the frozen mean of the others', with fixed weights",
    training="apply to the client's own LoRA and head; optimizer_state = 'average' is refused: no "
    "client continues from a mean",
    grid={"own_weight": (0.3, 0.5, 0.7, 0.9)},
    adapters=("lora",),
)
