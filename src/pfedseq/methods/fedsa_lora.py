"""FedSA-LoRA: LoRA's A is shared; B and the head are private.

Guo et al., "Selective Aggregation for Low-Rank Adaptation in Federated Learning", ICLR 2025.

Sent down and up: A. Evaluated: the received A with the client's own B_i and ω_i.

Deviations: the server weights clients by |D_i|, as Eq. (1) does for every method here. With DoRA,
the row magnitudes stay with the client, as B does.
"""

from collections.abc import Mapping

import torch

from pfedseq.federation import Client, Method, Reply, Server, Setup, Tensors
from pfedseq.lora import factors_needed
from pfedseq.methods.parts.server_steps import AveragingConfig, server_steps
from pfedseq.params import Params


class FedSALoRAServer(Server):
    """A ← Σ_i |D_i| / |D| · A_i."""

    persistent = ("lora_a", "steps")

    def __init__(self, config: AveragingConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        initial = setup.initial.adapter
        self.lora_a = initial[:, factors_needed(setup.factors, "FedSA-LoRA").mask("A", initial)]
        self.steps = server_steps(config, lora_a=self.lora_a)

    def payload(self, i: int) -> Tensors:
        """The common A."""
        return {"lora_a": self.lora_a}

    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """Average A."""
        stacked, present = self.setup.stack(replies, "lora_a", self.lora_a)
        mean = self.setup.aggregate(stacked, present)
        self.lora_a = self.steps["lora_a"](self.lora_a, mean)

    def expected(self, step: str) -> Tensors:
        """An A to average."""
        return {"lora_a": self.lora_a} if step == "train" else {}


class FedSALoRAClient(Client):
    """Tunes A, B and ω together, and keeps B and ω."""

    config: AveragingConfig
    sent_model = None  # only a part of the model is averaged

    def train(self, down: Tensors) -> Reply:
        """(A_i, B_i, ω_i) ← SGD from (A, B_i, ω_i)."""
        phi = self.fit(self.personal(down))
        self.state.update(phi.tensors())
        return Reply({"lora_a": phi.adapter[:, self.mask()]})

    def personal(self, down: Tensors) -> Params:
        """(A, B_i, ω_i)."""
        own = Params.of(self.task.initial.tensors() | self.state)
        adapter = own.adapter.clone()
        adapter[:, self.mask()] = down["lora_a"]
        return Params(adapter, own.head)

    def mask(self) -> torch.Tensor:
        """(D,) where A is."""
        factors = factors_needed(self.task.factors, "FedSA-LoRA")
        return factors.mask("A", self.task.initial.adapter)


METHOD = Method(
    name="fedsa_lora",
    server=FedSALoRAServer,
    client=FedSALoRAClient,
    config=AveragingConfig,
    title="FedSA-LoRA",
    summary="LoRA's A is averaged; B and the heads are private",
    training="apply to every local step; optimizer_state = 'average' is refused: only A is "
    "averaged",
    adapters=("lora", "dora"),
)
