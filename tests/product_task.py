"""Clients whose LoRA shall become a target, and the same in plain PyTorch to compare with.

L = ½ ‖BA − T‖² + ½ ‖ω − h‖² in each of K layers; all in float64.
"""

from dataclasses import dataclass, field

import torch
from torch import nn

from pfedseq.engines.local import LocalClients
from pfedseq.federation import Setup
from pfedseq.lora import Factors, Matrices, Projection
from pfedseq.methods import METHODS
from pfedseq.params import Params
from tests.toys import QuadraticTask

OUT, IN, K, RANK = 4, 3, 2, 2
EXACT = {"rtol": 1e-12, "atol": 1e-13}
NARROW = Factors(RANK * (IN + OUT), RANK, (Projection(0, RANK * IN, IN, OUT),))


@dataclass
class ProductTask(QuadraticTask):
    """A client's LoRA shall become its target T (K, out, in)."""

    target: torch.Tensor = field(default_factory=lambda: torch.zeros(K, OUT, IN))
    start: Params | None = None
    blocks: int = 1

    @property
    def factors(self):
        return NARROW.of_rank(RANK * self.blocks)

    @property
    def initial(self):
        return self.start

    def grad(self, phi, batch, part="both"):
        (m,) = self.factors.matrices(phi.adapter)
        error = m.up @ m.down - self.target
        found = Matrices(m.up.mT @ error, error @ m.down.mT)
        gradient = Params(self.factors.adapter([found]), phi.head - self.center.head)
        return Params(gradient.adapter * (part != "head"), gradient.head * (part != "adapter"))


@dataclass
class ProductSite:
    make: object
    saved: list = field(default_factory=list)

    def task(self, t, step):
        return self.make()


def products(blocks, clients=3):
    """Tasks, their common start, and a setup; all in float64."""
    rng = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    factors = NARROW.of_rank(RANK * blocks)
    start = Params(0.5 * draw(K, factors.adapter_dim), draw(3))
    targets = [draw(K, OUT, IN) for _ in range(clients)]
    heads = [draw(3) for _ in range(clients)]
    sizes = (1, 2, 5)[:clients]
    tasks = [
        ProductTask(Params(start.adapter, h), n, 2, target=t, start=start, blocks=blocks)
        for t, h, n in zip(targets, heads, sizes, strict=True)
    ]
    setup = Setup(start, sizes, 2, seed=0, num_classes=3, factors=factors)
    return tasks, setup


def run_two_rounds(name, config, tasks, setup):
    method = METHODS[name]
    sites = [ProductSite(lambda task=task: task) for task in tasks]
    clients = LocalClients(method.client, config, sites)
    server = method.server(config, setup)
    for t in (1, 2):
        server.run_round(t, clients)
    return [
        method.client(config, task, dict(clients.states.get(i))).personal(server.payload(i))
        for i, task in enumerate(tasks)
    ]


class LoRA(nn.Module):
    """One LoRA of all layers and a head, as anyone would write them."""

    def __init__(self, theta, head):
        super().__init__()
        (m,) = NARROW.matrices(theta)
        self.A, self.B = nn.Parameter(m.down.clone()), nn.Parameter(m.up.clone())
        self.head = nn.Parameter(head.clone())

    def product(self):
        return self.B @ self.A


def descend(parameters, loss, steps, lr):
    optimizer = torch.optim.SGD(parameters, lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


def loss_of(task, product, head):
    error, miss = product - task.target, head - task.center.head
    return 0.5 * error.square().sum() + 0.5 * miss.square().sum()


def averaged(models, weights):
    total = sum(weights)
    return {
        key: sum(w * m.state_dict()[key] for w, m in zip(weights, models, strict=True)) / total
        for key in models[0].state_dict()
    }


def product_of(setup, phi):
    (m,) = setup.factors.matrices(phi.adapter)
    return m.up @ m.down
