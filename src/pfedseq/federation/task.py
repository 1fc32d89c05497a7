"""The interfaces to a client's private data and to a server's auxiliary data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor

from pfedseq.federation.messages import Hello, Split
from pfedseq.lora import Factors
from pfedseq.measures import Score
from pfedseq.params import Params, Part
from pfedseq.training.config import Units

Batch = Tensor
"""Indices of training examples, as `Task.batches` yields and `Task.grad` takes them."""


class Task(Protocol):
    """Client i's objective L(D_i; φ), bound to one round; the data behind it stays at the client.

    Every random choice is a function of (seed, client, round, step), never of the engine.
    """

    @property
    def initial(self) -> Params:
        """φ^0, the same at every client."""

    @property
    def round(self) -> int:
        """The round t, from 1; 0 before the first."""

    @property
    def num_examples(self) -> int:
        """|D_i|, the number of training examples."""

    @property
    def units(self) -> Units:
        """The units of the model's learning rates."""

    @property
    def factors(self) -> Factors | None:
        """The positions of LoRA's A and B in θ; None for other adapters."""

    @property
    def label_counts(self) -> Tensor:
        """Training examples of each class (C,)."""

    def hello(self) -> Hello:
        """What the server may know of the client's data."""

    def batches(self, epochs: int) -> Iterator[Batch]:
        """Minibatches of `epochs` passes over the training data, each pass in a fresh order."""

    def grad(self, phi: Params, batch: Batch, part: Part = "both") -> Params:
        """∇_φ of the mean loss over `batch`; zero outside `part`, which then costs less."""

    def loss(self, phi: Params, batch: Batch) -> float:
        """The mean loss over `batch`, of which `grad` is the gradient."""

    def score(self, phi: Params, split: Split, full: bool = False) -> Score:
        """The measures of φ on a split of the client's data.

        With `full`, all measures and the counts that may be sent.
        """

    def sketches(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """A reduced form of the batch, and its labels (B,).

        Images become (B, 3, 32, 32), texts the mean (B, F) of their words' frozen embeddings.
        """

    def save(self, phi: Params) -> None:
        """Save φ as the client's personal model at its site."""


class Site(Protocol):
    """The place where a client's data are."""

    def task(self, t: int, step: str) -> Task:
        """The client's objective, bound to round t and to the step it is used in."""


class AuxiliaryTask(Protocol):
    """Unlabelled images at the server, and the shared model on them (PerAda)."""

    def batches(self, t: int, count: int, size: int) -> Iterator[Tensor]:
        """`count` minibatches of `size` images for round t; all images are drawn equally often."""

    def logits(self, phis: Sequence[Params], batch: Tensor) -> Tensor:
        """Logits (…, B, C) of several φ on a minibatch."""

    def distillation_grad(self, phi: Params, batch: Tensor, teacher: Tensor) -> Params:
        """∇_φ of the mean over the batch of KL(softmax(teacher) ‖ softmax(logits(φ)))."""
