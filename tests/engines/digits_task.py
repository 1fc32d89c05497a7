"""Clients that read small digits with an adapter of two rows under a linear head: real, and quick.

h = x ⊙ (1 + θ_1) + θ_2 of the 64 pixels x, and the logits are ω h. A client that flips its labels
calls every digit c a 9 − c.
"""

from dataclasses import dataclass, field, replace
from functools import cache

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from pfedseq.federation import Hello
from pfedseq.measures import score
from pfedseq.params import Params
from pfedseq.seeding import torch_generator
from pfedseq.training.config import Units

PIXELS, CLASSES, BATCH = 64, 10, 16


@cache
def digits():
    """1,797 images (n, 64) in [0, 1] and labels, in a random order that is always the same."""
    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(bunch.data, dtype=torch.float32)[order] / 16
    return images, torch.tensor(bunch.target)[order]


@dataclass
class DigitsTask:
    """Client i of `clients` at round t; implements `Task`."""

    i: int
    clients: int
    t: int
    flipped: bool = False
    saved: list = field(default_factory=list)

    units = Units()

    @property
    def round(self):
        return self.t

    @property
    def initial(self):
        return Params(torch.zeros(2, PIXELS), torch.zeros(CLASSES * PIXELS))

    @property
    def num_examples(self):
        return len(self.split("train")[1])

    def split(self, name):
        """Of the client's images 60 % to train with, 10 % to choose by and 30 % to test with."""
        images, labels = (part[self.i :: self.clients] for part in digits())
        bounds = [int(share * len(labels)) for share in (0, 0.6, 0.7, 1)]
        k = ("train", "validation", "test").index(name)
        some = slice(bounds[k], bounds[k + 1])
        if self.flipped and name == "train":
            labels = CLASSES - 1 - labels
        return images[some], labels[some]

    def hello(self):
        sizes = [len(self.split(name)[1]) for name in ("train", "validation", "test")]
        return Hello(*sizes, tuple(map(str, range(CLASSES))))

    def batches(self, epochs):
        rng = torch_generator(0, "batches", self.i, self.t)
        for _ in range(epochs):
            yield from torch.randperm(self.num_examples, generator=rng).split(BATCH)

    def logits(self, phi, images):
        features = images * (1 + phi.adapter[0]) + phi.adapter[1]
        return features @ phi.head.view(CLASSES, PIXELS).T

    def grad(self, phi, batch, part="both"):
        tuned = Params(*(x.detach().requires_grad_() for x in (phi.adapter, phi.head)))
        images, labels = (x[batch] for x in self.split("train"))
        F.cross_entropy(self.logits(tuned, images), labels).backward()
        return Params(tuned.adapter.grad * (part != "head"), tuned.head.grad * (part != "adapter"))

    def loss(self, phi, batch):
        images, labels = (x[batch] for x in self.split("train"))
        return float(F.cross_entropy(self.logits(phi, images), labels))

    def score(self, phi, split, full=False):
        images, labels = self.split(split)
        logits = self.logits(phi, images)
        return score(logits, labels)

    def save(self, phi):
        self.saved.append(phi)


@dataclass
class DigitsSite:
    of: DigitsTask

    def task(self, t, step):
        return replace(self.of, t=t)


def digits_federation(clients, flipped=()):
    return [DigitsSite(DigitsTask(i, clients, 0, i in flipped)) for i in range(clients)]
