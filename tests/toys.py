"""A task whose every answer is known: L(φ) = ½ ‖φ − c‖², gradient φ − c."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pfedseq.engines.local import LocalClients
from pfedseq.federation import Batch, Method, MethodConfig, Part, Score, Server, Setup, Split
from pfedseq.params import Params


@dataclass
class QuadraticTask:
    """½ ‖φ − center‖² with `num_batches` identical batches an epoch."""

    center: Params
    num_examples: int = 1
    num_batches: int = 1

    @property
    def initial(self) -> Params:
        return Params(torch.zeros_like(self.center.adapter), torch.zeros_like(self.center.head))

    def batches(self, epochs: int) -> Iterator[Batch]:
        yield from (torch.tensor([0]) for _ in range(epochs * self.num_batches))

    def grad(self, phi: Params, batch: Batch, part: Part = "both") -> Params:
        gradient = phi - self.center
        return Params(
            gradient.adapter * (part != "head"),
            gradient.head * (part != "adapter"),
        )

    def score(self, phi: Params, split: Split) -> Score:
        difference = phi - self.center
        loss = 0.5 * float(difference.dot(difference))
        return Score(1 / (1 + loss), loss, self.num_examples)


@dataclass
class QuadraticSite:
    make: Callable[[], QuadraticTask]

    def task(self, t: int, step: str) -> QuadraticTask:
        return self.make()


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
    return Setup(initial or zero, tuple(num_examples), rounds, seed=0)


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
