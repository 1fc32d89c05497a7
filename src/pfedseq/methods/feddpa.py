"""FedDPA-T: a global LoRA trained by FedAvg, and a private LoRA beside it for each client.

Yang et al., "Dual-Personalizing Adapter for Federated Foundation Models", NeurIPS 2024.

Sent down and up: the global LoRA θ_g (the size of one adapter) and its ω. Evaluated: the client's
ω_i on W + (1 − a) B_g A_g + a B_i A_i, both LoRAs side by side as one of twice the rank.

Deviations: the weight a is fixed; the paper's weight for each test example, by its likeness to the
client's training examples, is left out. θ_g is trained alone, then θ_i under the θ_g that was
received. The paper's language models have no head: here ω goes with θ_g, and ω_i with θ_i.
The server weights clients by |D_i|, as Eq. (1) does for every method here.
"""

from pydantic import Field
from torch import Tensor

from pfedseq.federation import Client, Method, Reply, Setup, Tensors
from pfedseq.methods.fedavg import FedAvgServer
from pfedseq.methods.parts.lora_blocks import TwoLoRAs, first_block
from pfedseq.methods.parts.server_steps import AveragingConfig
from pfedseq.params import Params


class FedDPAConfig(AveragingConfig):
    """Options of FedDPA."""

    own_weight: float = Field(
        0.5, ge=0, le=1, description="a, weight of the client's own LoRA; the global one has 1 − a"
    )

    @property
    def rank_blocks(self) -> int:
        """The global LoRA and the client's own."""
        return 2


class FedDPAServer(FedAvgServer):
    """FedAvg's, over the global LoRA."""

    def start(self, setup: Setup) -> tuple[Tensor, Tensor]:
        """θ_g^0 and ω^0."""
        return first_block(setup.factors, setup.initial, "FedDPA", 2), setup.initial.head

    def mean(self) -> Tensors:
        """The global LoRA and its head."""
        return {"adapter": self.adapter, "head": self.head}


class FedDPAClient(Client):
    """Trains the global LoRA for the others, then its own beside the global one."""

    config: FedDPAConfig
    sent_model = None  # the mean covers the global LoRA only, a part of θ

    def train(self, down: Tensors) -> Reply:
        """θ_g ← SGD on W + B_g A_g; then θ_i ← SGD on W + (1 − a) B_g A_g + a B_i A_i."""
        received = shared = Params.of(down)
        both, own = self.loras(), self.own(received)
        mine, ours = self.optimizer("own"), self.optimizer("shared")
        for batch in self.task.batches(self.config.local_epochs):
            gradient = self.task.grad(both.alone(shared), batch)
            shared = ours.step(shared, both.first_gradient(gradient))
        for batch in self.task.batches(self.config.local_epochs):
            gradient = self.task.grad(both.beside(received.adapter, own), batch)
            own = mine.step(own, both.second_gradient(gradient))
        self.state.update(own.tensors())
        return Reply(shared.tensors())

    def personal(self, down: Tensors) -> Params:
        """Both LoRAs, each with its weight, under the client's own head."""
        received = Params.of(down)
        return self.loras().beside(received.adapter, self.own(received))

    def mean_model(self, down: Tensors) -> Params:
        """The global LoRA alone."""
        return self.loras().alone(Params.of(down))

    def own(self, received: Params) -> Params:
        """θ_i and ω_i; initially a new LoRA and the received head."""
        initial = Params(self.loras().second(self.task.initial.adapter), received.head)
        return Params.of(initial.tensors() | self.state)

    def loras(self) -> TwoLoRAs:
        """How the two LoRAs are laid out in one θ."""
        return TwoLoRAs.of(self.task, "FedDPA", self.config.own_weight)


METHOD = Method(
    name="feddpa",
    server=FedDPAServer,
    client=FedDPAClient,
    config=FedDPAConfig,
    title="FedDPA-T",
    summary="a global LoRA trained by FedAvg beside a private one, with fixed weights",
    training="apply to both LoRAs, each with its own optimiser; optimizer_state = 'average' is "
    "refused: the mean covers only a part of θ",
    grid={"own_weight": (0.3, 0.5, 0.7, 0.9)},
    adapters=("lora",),
)
