"""PerAda: personal models near a global one that is distilled from all clients' models.

Xie et al., "PerAda: Parameter-Efficient Federated Learning Personalization with Generalization
Guarantees", CVPR 2024, Algorithm 1.

Sent down: the global φ. Sent up: φ_i. Evaluated: the client's own personal model v_i.

Deviations: the penalty is λ ‖v − φ‖², without ½, as in the authors' code, so that its gradient
is 2λ (v − φ). The authors' code also keeps labelled validation data at the server, which picks
the best step of the distillation and may discard it: here the server sees no labels and takes
the last step. Their code stops distilling after 30 rounds; their algorithm and this implementation
do not (`distillation_rounds` sets a limit). All clients that answer act as teachers with equal
weight. Each batch, once read, serves a step of v_i and a step of φ_i, as in Ditto; neither sees the
other.
"""

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field

from pfedseq.errors import InputError
from pfedseq.federation import Method, Reply, Setup
from pfedseq.methods.ditto import DittoClient, PullConfig
from pfedseq.methods.fedavg import FedAvgServer
from pfedseq.params import Params


class PerAdaConfig(PullConfig):
    """Options of PerAda."""

    distillation_steps: int = Field(
        100, ge=0, description="distillation steps per round; paper: 100"
    )
    distillation_lr: float = Field(
        0.005, gt=0, description="Adam's rate; paper: 0.005 of {0.001, 0.005, 0.01, 0.05}"
    )
    distillation_batch_size: int = Field(
        32, ge=1, description="auxiliary images per step; paper: unstated, original 256 and 2048"
    )
    distillation_rounds: int | None = Field(
        None, ge=1, description="distil in the first rounds only (the authors' code: 30)"
    )


class PerAdaServer(FedAvgServer):
    """φ ← mean of φ_i, as in FedAvg; then φ descends KL(mean logits of the φ_i ‖ its logits)."""

    config: PerAdaConfig

    def __init__(self, config: PerAdaConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        if setup.auxiliary is None:
            raise InputError(
                "perada distils on unlabelled images at the server and was given none: "
                "name some in the [auxiliary] section"
            )
        self.auxiliary = setup.auxiliary

    def update(self, t: int, replies: Mapping[int, Reply]) -> None:
        """Average with equal weights, then distil."""
        adapters, present = self.setup.stack(replies, "adapter")
        heads, _ = self.setup.stack(replies, "head")
        student = Params(
            self.setup.aggregate(adapters, present, weighted=False),
            self.setup.aggregate(heads, present, weighted=False),
        )
        limit = self.config.distillation_rounds
        if self.config.distillation_steps and (limit is None or t <= limit):
            teachers = [Params(adapters[i], heads[i]) for i in sorted(replies)]
            student = self._distil(t, student, teachers)
        self.adapter, self.head = student.adapter, student.head

    def _distil(self, t: int, student: Params, teachers: Sequence[Params]) -> Params:
        """Adam with cosine annealing on KL(teacher ‖ student); the teacher is the mean logit."""
        steps, auxiliary = self.config.distillation_steps, self.auxiliary
        adapter, head = student.adapter.clone(), student.head.clone()
        optimizer = torch.optim.Adam([adapter, head], lr=self.config.distillation_lr)
        annealing = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for batch in auxiliary.batches(t, steps, self.config.distillation_batch_size):
            teacher = auxiliary.logits(teachers, batch).mean(0)
            gradient = auxiliary.distillation_grad(Params(adapter, head), batch, teacher)
            adapter.grad, head.grad = gradient.adapter, gradient.head
            optimizer.step()
            annealing.step()
        return Params(adapter, head)


class PerAdaClient(DittoClient):
    """Ditto's client with a penalty without ½: v_i with a pull, and plain SGD on a copy of φ."""

    config: PerAdaConfig

    def pull(self) -> float:
        """The factor of v_i − φ in the gradient: 2λ, since the penalty is λ ‖v_i − φ‖²."""
        return 2 * self.config.proximal_weight


METHOD = Method(
    name="perada",
    server=PerAdaServer,
    client=PerAdaClient,
    config=PerAdaConfig,
    title="PerAda",
    summary="personal models near a global one, which is distilled from all clients' models",
    training="as in ditto at the clients; distillation uses Adam at distillation_lr",
    grid={
        "proximal_weight": (0.01, 0.1, 1.0, 10.0),
        "distillation_lr": (0.001, 0.005, 0.01, 0.05),
    },
    needs_auxiliary=True,
    needs_head=True,
)
