"""FFA-LoRA: LoRA's A stays at its random initial value; B is averaged.

Sun et al., "Improving LoRA in Privacy-preserving Federated Learning", ICLR 2024.

Sent down and up: B and ω. Evaluated: (A⁰, B, ω), the same for all, on each client's data.

With A fixed, the mean of the products B_i A⁰ is the product of the mean B, and privacy noise added
to B is not multiplied by noise in A.

Deviations: the server weights clients by |D_i|, as Eq. (1) does for every method here. DoRA's
row magnitudes are treated like B.
"""

from torch import Tensor

from pfedseq.federation import Client, Method, Reply, Setup, Tensors
from pfedseq.lora import Factors, factors_needed
from pfedseq.methods.fedavg import FedAvgServer
from pfedseq.methods.parts.server_steps import AveragingConfig
from pfedseq.params import Params


def trained_entries(factors: Factors | None, like: Tensor) -> Tensor:
    """(D,) all but A."""
    return ~factors_needed(factors, "FFA-LoRA").mask("A", like)


class FFALoRAServer(FedAvgServer):
    """FedAvg over everything but A: `adapter` is that part of θ (K, D − |A|)."""

    def start(self, setup: Setup) -> tuple[Tensor, Tensor]:
        """B⁰ and ω^0."""
        adapter = setup.initial.adapter
        return adapter[:, trained_entries(setup.factors, adapter)], setup.initial.head


class FFALoRAClient(Client):
    """Local training in which A does not move."""

    config: AveragingConfig
    sent_model = None  # only a part of the model is averaged

    def train(self, down: Tensors) -> Reply:
        """(B_i, ω_i) ← SGD from (B, ω) under A⁰."""
        optimizer, phi, moves = self.optimizer(), self.personal(down), self.mask()
        frozen = phi.adapter
        for batch in self.task.batches(self.config.local_epochs):
            phi = optimizer.step(phi, self.task.grad(phi, batch))
            phi = Params(phi.adapter.where(moves, frozen), phi.head)
        return Reply({"adapter": phi.adapter[:, moves], "head": phi.head})

    def personal(self, down: Tensors) -> Params:
        """(A⁰, B, ω)."""
        adapter = self.task.initial.adapter.clone()
        adapter[:, self.mask()] = down["adapter"]
        return Params(adapter, down["head"])

    def evaluate_mean(self, down: Tensors) -> Reply:
        """Nothing to add: `evaluate` already scores the mean."""
        return Reply()

    def mask(self) -> Tensor:
        """(D,) mask of the trained entries."""
        return trained_entries(self.task.factors, self.task.initial.adapter)


METHOD = Method(
    name="ffa_lora",
    server=FFALoRAServer,
    client=FFALoRAClient,
    config=AveragingConfig,
    title="FFA-LoRA",
    summary="LoRA's A is frozen; B and the head are averaged",
    training="apply to every local step; optimizer_state = 'average' is refused: A is not averaged",
    adapters=("lora", "dora"),
)
