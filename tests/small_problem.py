"""A small classification problem in float64, for our halves of a method and for plain PyTorch.

Three clients of 5, 8 and 14 examples in batches of 4; a frozen network of two tanh layers, each
with a LoRA, under a linear head; cross-entropy. Our halves see it as a `Task` over flat θ and ω,
a derivation in plain PyTorch as `Net`, a module with A, B and a head. The two share the data, the
frozen weights and the order of the batches.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import nn

from pfedseq.engines.local import LocalClients
from pfedseq.federation import Setup
from pfedseq.lora import Factors, Projection
from pfedseq.methods import METHODS
from pfedseq.params import Params
from pfedseq.training.config import Units

LAYERS, WIDTH, CLASSES, BATCH = 2, 4, 3, 4
SIZES = (5, 8, 14)
CLIENTS = range(len(SIZES))
WEIGHTS = tuple(n / sum(SIZES) for n in SIZES)
EXACT = {"rtol": 1e-12, "atol": 1e-13}


def drawn(*shape, seed):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


FROZEN = drawn(LAYERS, WIDTH, WIDTH, seed=1)


def batches_of(client, t, step, epochs=1):
    """The order of a client's examples in a step of a round."""
    rng = torch.Generator().manual_seed(1000 * t + 100 * client + sum(step.encode()))
    orders = [torch.randperm(SIZES[client], generator=rng) for _ in range(epochs)]
    return [batch for order in orders for batch in order.split(BATCH)]


@dataclass
class Data:
    """A client's examples: inputs, labels, and the small images that PeFLL embeds."""

    client: int

    def __post_init__(self):
        size = SIZES[self.client]
        self.inputs = drawn(size, WIDTH, seed=10 + self.client)
        scores = self.inputs @ drawn(WIDTH, CLASSES, seed=20 + self.client)
        self.labels = scores.argmax(1)
        self.images = drawn(size, 3, 32, 32, seed=30 + self.client)


# As our halves see it.


def flat_logits(phi, inputs, rank):
    """θ's rows are A (rank, width) and then B (width, rank); ω is a matrix and then biases."""
    h = inputs
    for frozen, row in zip(FROZEN, phi.adapter, strict=True):
        a, b = row[: rank * WIDTH].view(rank, WIDTH), row[rank * WIDTH :].view(WIDTH, rank)
        h = torch.tanh(h @ (frozen + b @ a).T)
    matrix, biases = phi.head[:-CLASSES].view(CLASSES, WIDTH), phi.head[-CLASSES:]
    return h @ matrix.T + biases


@dataclass
class SmallTask:
    data: Data
    initial: Params
    factors: Factors
    round: int = 0
    step: str = ""
    units = Units()

    @property
    def num_examples(self):
        return SIZES[self.data.client]

    @property
    def label_counts(self):
        return torch.bincount(self.data.labels, minlength=CLASSES)

    def batches(self, epochs):
        return iter(batches_of(self.data.client, self.round, self.step, epochs))

    def grad(self, phi, batch, part="both"):
        leaf = Params(*(x.detach().clone().requires_grad_() for x in (phi.adapter, phi.head)))
        self._loss(leaf, batch).backward()
        slope = Params(leaf.adapter.grad, leaf.head.grad)
        return Params(slope.adapter * (part != "head"), slope.head * (part != "adapter"))

    def loss(self, phi, batch):
        return self._loss(phi, batch).item()

    def sketches(self, batch):
        return self.data.images[batch], self.data.labels[batch]

    def _loss(self, phi, batch):
        logits = flat_logits(phi, self.data.inputs[batch], self.factors.rank)
        return F.cross_entropy(logits, self.data.labels[batch])


@dataclass
class SmallSite:
    made: SmallTask

    def task(self, t, step):
        return replace(self.made, round=t, step=step)


@dataclass
class SmallAuxiliary:
    """Unlabelled inputs at the server."""

    rank: int
    inputs: torch.Tensor = field(default_factory=lambda: drawn(9, WIDTH, seed=40))

    def batches(self, t, count, size):
        rng = torch.Generator().manual_seed(t)
        return iter([torch.randperm(9, generator=rng)[:size] for _ in range(count)])

    def logits(self, phis, batch):
        found = [flat_logits(phi, self.inputs[batch], self.rank) for phi in phis]
        return torch.stack(found)

    def distillation_grad(self, phi, batch, teacher):
        leaf = Params(*(x.detach().clone().requires_grad_() for x in (phi.adapter, phi.head)))
        student = self.logits([leaf], batch)[0].softmax(1)
        wanted = teacher.softmax(1)
        loss = (wanted * (wanted.log() - student.log())).sum() / len(batch)
        loss.backward()
        return Params(leaf.adapter.grad, leaf.head.grad)


@dataclass
class Federation:
    """Our server and clients on the problem."""

    name: str
    rounds: int
    rank: int = 2
    options: dict = field(default_factory=dict)

    def __post_init__(self):
        method, size = METHODS[self.name], 2 * WIDTH * self.rank
        start = Params(
            0.5 * drawn(LAYERS, size, seed=50), 0.5 * drawn(CLASSES * (WIDTH + 1), seed=51)
        )
        factors = Factors(size, self.rank, (Projection(0, self.rank * WIDTH, WIDTH, WIDTH),))
        self.setup = Setup(
            start,
            SIZES,
            self.rounds,
            seed=0,
            num_classes=CLASSES,
            factors=factors,
            auxiliary=SmallAuxiliary(self.rank),
        )
        self.config = method.config(**self.options)
        tasks = [SmallTask(Data(i), start, factors) for i in CLIENTS]
        self.clients = LocalClients(method.client, self.config, [SmallSite(x) for x in tasks])
        self.server = method.server(self.config, self.setup)

    def start(self):
        """The common start, for plain PyTorch."""
        return Net.of(self.setup.initial, self.rank)

    def play(self):
        """All rounds; every client's personal model after the last."""
        for t in range(1, self.rounds + 1):
            self.server.run_round(t, self.clients)
        found = []
        for i in CLIENTS:
            task = self.clients.sites[i].task(self.rounds, "evaluate")
            client = self.clients.client(self.config, task, dict(self.clients.states.get(i)))
            found.append(Net.of(client.personal(self.server.payload(i)), self.rank))
        return found


# As anyone would write it in PyTorch.


class Net(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.A = nn.ParameterList(torch.zeros(rank, WIDTH) for _ in range(LAYERS))
        self.B = nn.ParameterList(torch.zeros(WIDTH, rank) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.double()

    @classmethod
    def of(cls, phi, rank):
        net, cut = cls(rank), rank * WIDTH
        with torch.no_grad():
            for k, row in enumerate(phi.adapter):
                net.A[k].copy_(row[:cut].reshape(rank, WIDTH))
                net.B[k].copy_(row[cut:].reshape(WIDTH, rank))
            net.head.weight.copy_(phi.head[:-CLASSES].reshape(CLASSES, WIDTH))
            net.head.bias.copy_(phi.head[-CLASSES:])
        return net

    def products(self):
        return [b @ a for a, b in zip(self.A, self.B, strict=True)]

    def forward(self, x):
        return self.head(features(x, self.products()))

    def adapter(self):
        """All A and B, layer by layer."""
        return [p for pair in zip(self.A, self.B, strict=True) for p in pair]

    def theta(self):
        """They in one row for each layer, as a hypernetwork emits them."""
        pairs = zip(self.A, self.B, strict=True)
        return torch.stack([torch.cat([a.flatten(), b.flatten()]) for a, b in pairs]).detach()

    @torch.no_grad()
    def load_theta(self, theta):
        for a, b, row in zip(self.A, self.B, theta, strict=True):
            a.copy_(row[: a.numel()].view_as(a))
            b.copy_(row[a.numel() :].view_as(b))
        return self


def features(x, products):
    for frozen, product in zip(FROZEN, products, strict=True):
        x = torch.tanh(F.linear(x, frozen + product))
    return x


def cross_entropy(net, client, batch, shift=0.0):
    data = Data(client)
    return F.cross_entropy(net(data.inputs[batch]) + shift, data.labels[batch])


def sgd(net, client, t, lr, *, parameters=None, penalty=lambda: 0.0, shift=0.0, step="train"):
    """One pass of plain SGD on cross-entropy and a penalty."""
    moving = list(net.parameters() if parameters is None else parameters)
    optimizer = torch.optim.SGD(moving, lr=lr)
    for batch in batches_of(client, t, step):
        net.zero_grad()
        (cross_entropy(net, client, batch, shift) + penalty()).backward()
        optimizer.step()
    return net


def distance(net, other):
    pairs = zip(net.parameters(), other.parameters(), strict=True)
    return sum((mine - theirs.detach()).square().sum() for mine, theirs in pairs)


def mean_of(nets, weights=WEIGHTS):
    found = copy.deepcopy(nets[0])
    with torch.no_grad():
        for target, *parts in zip(found.parameters(), *(n.parameters() for n in nets), strict=True):
            target.copy_(sum(w * part for w, part in zip(weights, parts, strict=True)))
    return found


def assert_equal_nets(found, expected, rtol=EXACT["rtol"], atol=EXACT["atol"]):
    """Parameter by parameter."""
    for ours, theirs in zip(found, expected, strict=True):
        wanted = dict(theirs.named_parameters())
        for name, value in ours.named_parameters():
            torch.testing.assert_close(value.detach(), wanted[name].detach(), rtol=rtol, atol=atol)


def assert_equal_functions(found, products, heads):
    """Products BA and heads: where factors are not unique, or several LoRAs make one."""
    for ours, theirs, head in zip(found, products, heads, strict=True):
        for one, other in zip(ours.products(), theirs, strict=True):
            torch.testing.assert_close(one.detach(), other.detach(), **EXACT)
        torch.testing.assert_close(ours.head.weight.detach(), head.weight.detach(), **EXACT)
        torch.testing.assert_close(ours.head.bias.detach(), head.bias.detach(), **EXACT)
