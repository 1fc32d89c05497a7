"""Per-FedAvg: a common model that one gradient step turns into a good personal one.

Fallah et al., "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020, Algorithm 1, first-order version (FO).

Sent down and up: θ and ω. Evaluated: the global φ after one SGD step on one random batch of the
client's training data.

Deviations: the server weights clients by |D_i|, as Eq. (1) does for every method here. α and β are
both the local rate unless `inner_lr` says otherwise, since the pFedSeq paper tunes one rate. A
meta-step takes two consecutive batches of one pass; if the number of batches is odd, the last
one is halved, so that every example is used once and a client with a single batch still trains.
"""

from collections.abc import Iterator

from pydantic import Field

from pfedseq.federation import Batch, Client, Method, Reply, Task, Tensors
from pfedseq.methods.fedavg import FedAvgServer
from pfedseq.methods.parts.server_steps import AveragingConfig
from pfedseq.params import Params


class PerFedAvgConfig(AveragingConfig):
    """Options of Per-FedAvg."""

    inner_lr: float | None = Field(
        None, gt=0, description="α, rate of the adaptation step; default: lr"
    )

    @property
    def adaptation_rate(self) -> float:
        """α."""
        return self.lr if self.inner_lr is None else self.inner_lr


class PerFedAvgClient(Client):
    """Meta-steps: the gradient is taken after one adaptation step."""

    config: PerFedAvgConfig

    def train(self, down: Tensors) -> Reply:
        """φ ← φ − β ∇L(φ − α ∇L(φ; B); B') for each pair of batches."""
        phi, optimizer = Params.of(down), self.optimizer()
        for first, second in double_batches(self.task, self.config.local_epochs):
            phi = optimizer.step(phi, self.task.grad(self.adapted(phi, first), second))
        return Reply(phi.tensors())

    def personal(self, down: Tensors) -> Params:
        """The global φ, adapted on one random training batch."""
        batch = next(self.task.batches(1))
        return self.adapted(Params.of(down), batch)

    def adapted(self, phi: Params, batch: Batch) -> Params:
        """φ − α ∇L(φ; B)."""
        return self.descend(phi, self.task.grad(phi, batch), self.config.adaptation_rate)


def double_batches(task: Task, epochs: int) -> Iterator[tuple[Batch, Batch]]:
    """(B, B') from consecutive batches of a pass; an odd last batch is halved.

    A last batch of a single example is both B and B'.
    """
    for _ in range(epochs):
        batches = task.batches(1)
        for first in batches:
            second = next(batches, None)
            if second is not None:
                yield first, second
            elif len(first) > 1:
                half = (len(first) + 1) // 2
                yield first[:half], first[half:]
            else:
                yield first, first


METHOD = Method(
    name="per_fedavg",
    server=FedAvgServer,
    client=PerFedAvgClient,
    config=PerFedAvgConfig,
    title="Per-FedAvg",
    summary="a global model that one local step personalises (first-order MAML)",
    training="apply to the meta-step; the adaptation step is plain SGD at inner_lr, bounded by "
    "max_step unless optimizer = 'adamw'",
)
