"""Tasks whose every answer is known: L(φ) = ½ ‖φ − c‖² + κ (Σθ)(Σω), gradient φ − c + κ (Σω, Σθ).

κ couples θ and ω: where it is not zero, the order in which a method moves them shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pfedseq.engines.local import LocalClients
from pfedseq.federation import (
    Batch,
    Hello,
    Method,
    MethodConfig,
    Part,
    Server,
    Setup,
    Split,
    Task,
    Tensors,
)
from pfedseq.lora import Factors, Projection
from pfedseq.measures import Score
from pfedseq.methods.local import LocalClient
from pfedseq.params import Params
from pfedseq.seeding import torch_generator
from pfedseq.training.config import Units


def toy_factors(like: Params) -> Factors | None:
    """θ's rows as A (r, 2) and B (3, r) one after the other, where their length allows it."""
    rank, rest = divmod(like.adapter.shape[1], 5)
    return None if rest else Factors(5 * rank, rank, (Projection(0, 2 * rank, 2, 3),))


@dataclass
class QuadraticTask:
    """½ ‖φ − center‖² + κ (Σθ)(Σω) with `num_batches` identical batches an epoch."""

    center: Params
    num_examples: int = 1
    num_batches: int = 1
    coupling: float = 0.0
    """κ."""
    round: int = 1
    saved: list[Params] = field(default_factory=list)
    """Where the client's personal model is kept: the last one counts."""

    units = Units()

    @property
    def factors(self) -> Factors | None:
        return toy_factors(self.center)

    @property
    def label_counts(self) -> Tensor:
        return torch.arange(1, 1 + len(self.center.head))

    @property
    def initial(self) -> Params:
        return Params(torch.zeros_like(self.center.adapter), torch.zeros_like(self.center.head))

    def hello(self) -> Hello:
        classes = tuple(f"class {c}" for c in range(len(self.center.head)))
        return Hello(self.num_examples, 10, 20, classes)

    def save(self, phi: Params) -> None:
        self.saved.append(phi)

    def batches(self, epochs: int) -> Iterator[Batch]:
        yield from (torch.tensor([0]) for _ in range(epochs * self.num_batches))

    def grad(self, phi: Params, batch: Batch, part: Part = "both") -> Params:
        gradient = phi - self.center
        if self.coupling:
            cross = (self.coupling * phi.head.sum(), self.coupling * phi.adapter.sum())
            gradient = Params(gradient.adapter + cross[0], gradient.head + cross[1])
        return Params(
            gradient.adapter * (part != "head"),
            gradient.head * (part != "adapter"),
        )

    def loss(self, phi: Params, batch: Batch) -> float:
        difference = phi - self.center
        cross = self.coupling * phi.adapter.sum() * phi.head.sum()
        return 0.5 * float(difference.flat() @ difference.flat()) + float(cross)

    def score(self, phi: Params, split: Split, full: bool = False) -> Score:
        """Each split is harder than the one before, and has a size of its own."""
        rank = ("train", "validation", "test").index(split)
        loss = (1 + rank) * self.loss(phi, torch.tensor([0]))
        values = {"accuracy": 1 / (1 + loss), "loss": loss}
        return Score(values, self.num_examples + 100 * rank)

    def sketches(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Images that show θ's part of the center, labelled with the largest entry of ω's."""
        shown = self.center.adapter.flatten()
        pixels = shown.repeat(1 + 3 * 32 * 32 // len(shown))[: 3 * 32 * 32].view(1, 3, 32, 32)
        return pixels.expand(len(batch), -1, -1, -1), self.center.head.argmax().expand(len(batch))


class ToyAuxiliary:
    """Unlabelled images of which image b has the logits 3 tanh(M_b φ), φ = (θ, ω) in one row.

    Not linear, or the mean model would give the mean logits already. With p = softmax(teacher)
    and q = softmax(logits) the gradient of KL(p ‖ q) is M_bᵀ (3 (1 − tanh²) ⊙ (q − p)).
    """

    def __init__(self, like: Params, num_images: int = 6, num_classes: int = 3) -> None:
        self.like, length = like, like.adapter.numel() + like.head.numel()
        rng = torch.Generator().manual_seed(5)
        self.maps = torch.randn(num_images, num_classes, length, generator=rng) / length**0.5

    def batches(self, t: int, count: int, size: int) -> Iterator[Tensor]:
        rng = torch.Generator().manual_seed(t)
        for _ in range(count):
            yield torch.randint(len(self.maps), (size,), generator=rng)

    def logits(self, phis: Sequence[Params], batch: Tensor) -> Tensor:
        flat = [torch.cat([phi.adapter.flatten(), phi.head]) for phi in phis]
        return torch.stack([3 * torch.tanh(self.maps[batch] @ one) for one in flat])

    def distillation_grad(self, phi: Params, batch: Tensor, teacher: Tensor) -> Params:
        logits = self.logits([phi], batch)[0]
        error = 3 * (1 - (logits / 3) ** 2) * (logits.softmax(1) - teacher.softmax(1))
        flat = torch.einsum("bc,bcl->l", error, self.maps[batch]) / len(batch)
        adapter, head = flat.split([self.like.adapter.numel(), self.like.head.numel()])
        return Params(adapter.view_as(self.like.adapter), head)


@dataclass
class ScatteredTask(QuadraticTask):
    """½ mean_k ‖φ − x_k‖² over points x_k around `center`: batches differ, their order is drawn.

    The gradient on a batch is φ minus the mean of its points.
    """

    batch_size: int = 2
    order: torch.Generator = field(default_factory=torch.Generator)

    def points(self) -> Tensor:
        """(num_examples, K·D + H), always the same."""
        rng = torch.Generator().manual_seed(7)
        center = self.center.flat()
        return center + torch.randn(self.num_examples, len(center), generator=rng)

    def batches(self, epochs: int) -> Iterator[Batch]:
        for _ in range(epochs):
            order = torch.randperm(self.num_examples, generator=self.order)
            yield from order.split(self.batch_size)

    def grad(self, phi: Params, batch: Batch, part: Part = "both") -> Params:
        mean = self.center.unflat(self.points()[batch].mean(0))
        return QuadraticTask(mean).grad(phi, batch, part)

    def loss(self, phi: Params, batch: Batch) -> float:
        return 0.5 * float((phi.flat() - self.points()[batch]).square().sum(1).mean())


@dataclass
class RecordingTask:
    """Passes everything on to `task` and keeps what gradients were asked for."""

    task: QuadraticTask
    asked: list[tuple[Params, Batch]] = field(default_factory=list)

    def grad(self, phi: Params, batch: Batch, part: Part = "both") -> Params:
        self.asked.append((phi, batch))
        return self.task.grad(phi, batch, part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)


@dataclass
class QuadraticSite:
    make: Callable[[], QuadraticTask]
    saved: list[Params] = field(default_factory=list)

    def task(self, t: int, step: str) -> QuadraticTask:
        return replace(self.make(), saved=self.saved, round=t)


@dataclass
class ScatteredSite:
    client: int
    center: Params
    num_examples: int
    saved: list[Params] = field(default_factory=list)

    def task(self, t: int, step: str) -> ScatteredTask:
        purpose = "personal" if step in ("evaluate", "keep", "assess", "export") else step
        order = torch_generator(0, "batches", self.client, t, purpose)
        return ScatteredTask(self.center, self.num_examples, order=order, saved=self.saved, round=t)


def trained(task: Task, phi: Params, **options: Any) -> Params:
    """φ after a client's plain local training with these options."""
    return LocalClient(MethodConfig(**options), task, {}).fit(phi)


def quadratic_federation(
    centers: Sequence[Params], num_examples: Sequence[int], num_batches: int = 1
) -> list[QuadraticSite]:
    return [
        QuadraticSite(lambda c=c, n=n: QuadraticTask(c, n, num_batches))
        for c, n in zip(centers, num_examples, strict=True)
    ]


def random_centers(
    num_clients: int, num_layers: int = 2, adapter_dim: int = 5, head_dim: int = 3, seed: int = 0
) -> list[Params]:
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    return [Params(draw(num_layers, adapter_dim), draw(head_dim)) for _ in range(num_clients)]


def make_setup(
    centers: Sequence[Params],
    num_examples: Sequence[int],
    rounds: int = 3,
    initial: Params | None = None,
) -> Setup:
    zero = Params(torch.zeros_like(centers[0].adapter), torch.zeros_like(centers[0].head))
    num_classes = len(zero.head)  # as many as there are labels: see QuadraticTask.sketches
    return Setup(
        initial or zero,
        tuple(num_examples),
        rounds,
        seed=0,
        num_classes=num_classes,
        auxiliary=ToyAuxiliary(zero),
        factors=toy_factors(zero),
    )


def personal_models(
    clients: LocalClients, t: int, down: Mapping[int, Tensors]
) -> dict[int, Params]:
    """What each addressed client saves as its personal model after round t."""
    replies = clients.call("export", t, down)
    assert not any(reply.tensors for reply in replies.values()), "nothing of it is sent up"
    return {i: clients.sites[i].saved[-1] for i in replies}


def play(
    method: Method,
    config: MethodConfig,
    centers: Sequence[Params],
    num_examples: Sequence[int],
    rounds: int,
    engine: type[LocalClients] = LocalClients,
    num_batches: int = 1,
) -> tuple[Server, LocalClients]:
    """Run `rounds` rounds of a method on quadratic tasks; server and engine as they end."""
    clients = engine(
        method.client, config, quadratic_federation(centers, num_examples, num_batches)
    )
    server = method.server(config, make_setup(centers, num_examples, rounds))
    for t in range(1, rounds + 1):
        server.run_round(t, clients)
    return server, clients
