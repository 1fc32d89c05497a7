"""A client's objective: cross-entropy of the adapted model, its gradient and its score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfedseq.data.dataset import ClientData
from pfedseq.errors import InputError
from pfedseq.federation import Batch, Hello, Part, Split
from pfedseq.lora import Factors
from pfedseq.measures import ALWAYS, MEASURES, Score
from pfedseq.model import shared_passes
from pfedseq.model.adapted import AdaptedModel
from pfedseq.params import Params
from pfedseq.seeding import derive_seed, torch_generator
from pfedseq.training.config import Units
from pfedseq.training.loss import CROSS_ENTROPY, Loss, LossConfig

PLAIN = Loss()
"""Cross-entropy."""


class Examples(Protocol):
    """A data set by index, as the adapted model reads it."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the C classes."""

    def inputs(self, indices: NDArray) -> Tensor:  # type: ignore[type-arg]
        """(B, …): what the adapted model starts from."""

    def training_inputs(self, indices: NDArray, stream: int) -> Tensor:  # type: ignore[type-arg]
        """The same for training, augmented as a function of (stream, index), if at all."""

    def labels(self, indices: NDArray) -> Tensor:  # type: ignore[type-arg]
        """(B,) class indices; for dialogues the tokens to be predicted, concatenated."""

    def sketches(self, indices: NDArray) -> Tensor:  # type: ignore[type-arg]
        """(B, …): downscaled examples, for PeFLL's description of a client."""


Keep = Callable[[Params], None]
"""Saves a personal model in the client's storage."""


def _no_place(phi: Params) -> None:
    raise InputError("this client has no folder to save its personal model to")


class ExampleTask:
    """L(D_i; φ) of one client in one round; implements `federation.Task`."""

    def __init__(
        self,
        model: AdaptedModel,
        source: Examples,
        data: ClientData,
        batch_size: int,
        order: torch.Generator,
        dropout: torch.Generator,
        keep: Keep = _no_place,
        drawn: Tensor | None = None,
        measures: Sequence[str] = ALWAYS,
        round: int = 1,
        criterion: Loss = PLAIN,
        stream: int = 0,
    ) -> None:
        self.model, self.source, self.data, self._keep = model, source, data, keep
        self._drawn = torch.arange(len(data.train)) if drawn is None else drawn
        self.batch_size, self._order, self._dropout = batch_size, order, dropout
        self.measures = measures
        self.round, self.criterion, self._stream = round, criterion, stream
        self._kept: tuple[Tensor, Tensor] | None = None
        self._read: tuple[Batch, Tensor, Tensor] | None = None

    @property
    def units(self) -> Units:
        """The units of the model's learning rates."""
        return self.model.units

    @property
    def initial(self) -> Params:
        """φ^0, the same at every client."""
        return self.model.initial

    @property
    def num_examples(self) -> int:
        """The number of training examples of this round: |D_i|, or the number drawn for it."""
        return len(self._drawn)

    @property
    def factors(self) -> Factors | None:
        """The positions of LoRA's A and B in θ; None for adapters without them."""
        return self.model.factors

    @property
    def label_counts(self) -> Tensor:
        """(C,) training examples of each class."""
        labels = self.source.labels(self.data.train)
        return torch.bincount(labels, minlength=len(self.source.class_names))

    def hello(self) -> Hello:
        """The sizes of the splits and the names of the classes."""
        data, names = self.data, self.source.class_names
        return Hello(len(data.train), len(data.validation), len(data.test), names)

    def save(self, phi: Params) -> None:
        """Save a personal model in the site's folder."""
        self._keep(phi)

    def batches(self, epochs: int) -> Iterator[Batch]:
        """Batches of positions in the client's training data; the last may be smaller."""
        for _ in range(epochs):
            order = torch.randperm(self.num_examples, generator=self._order)
            yield from self._drawn[order].split(self.batch_size)

    def grad(self, phi: Params, batch: Batch, part: Part = "both") -> Params:
        """∇_φ of the client's loss over the batch, shaped as φ: (K, D) and (H,)."""
        if part == "head" and not phi.head.numel():
            return Params(torch.zeros_like(phi.adapter), torch.zeros_like(phi.head))
        adapter = phi.adapter.detach().requires_grad_(part != "head")
        head = phi.head.detach().requires_grad_(part != "adapter")
        if part == "head":
            features = self.train_features(adapter)[batch.to(adapter.device)]
            labels = self.labels(batch)
        else:
            inputs, labels = self.examples(batch)
            features = self.model.features(adapter, inputs, self._dropout)
        loss = self.criterion(self.model.classify(head, features), labels)
        wanted = [x for x in (adapter, head) if x.requires_grad]
        gradients = iter(
            torch.autograd.grad(loss, wanted, materialize_grads=True)
        )  # ω may be empty
        return Params(
            next(gradients) if adapter.requires_grad else torch.zeros_like(adapter),
            next(gradients) if head.requires_grad else torch.zeros_like(head),
        )

    @staticmethod
    def answer_together(questions: Sequence[shared_passes.Asked]) -> list[Any]:
        """The results of several clients' calls, computed in shared passes."""
        return shared_passes.answers(questions)

    @torch.no_grad()
    def loss(self, phi: Params, batch: Batch) -> float:
        """The client's loss over the batch."""
        inputs, labels = self.examples(batch)
        logits = self.model.classify(phi.head, self.model.features(phi.adapter, inputs))
        return float(self.criterion(logits, labels))

    @torch.no_grad()
    def score(self, phi: Params, split: Split, full: bool = False) -> Score:
        """The run's measures on a split; with `full`, all measures and counts."""
        indices = getattr(self.data, split)
        return self.scored(phi.head, self.features(phi.adapter, indices), indices, full)

    @torch.no_grad()
    def scored(
        self, head: Tensor, features: Tensor, indices: NDArray[Any], full: bool = False
    ) -> Score:
        """`score` of examples whose features are given."""
        measures = tuple(MEASURES) if full else self.measures
        return self.model.readout.score(head, features, self.source.labels(indices), measures, full)

    def inputs(self, indices: NDArray[Any], training: bool = False) -> Tensor:
        """The adapted model's inputs; with `training`, augmented for the round."""
        if training:
            return self.source.training_inputs(indices, self._stream)
        return self.source.inputs(indices)

    @torch.no_grad()
    def features(self, adapter: Tensor, indices: NDArray[Any], training: bool = False) -> Tensor:
        """Features (n, F) of examples for a fixed θ, computed in batches."""
        features_of, size = self.model.merged(adapter), self.model.readout.pass_size
        parts = [
            features_of(self.inputs(indices[start : start + size], training))
            for start in range(0, len(indices), size)
        ]
        return torch.cat(parts or [adapter.new_zeros(0, self.model.feature_dim)])

    def sketches(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Downscaled examples, and labels (B,)."""
        indices = self.data.train[batch.cpu().numpy()]
        return self.source.sketches(indices), self.source.labels(indices)

    def examples(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Inputs and labels of a batch, kept for repeated requests of the same batch.

        pFedMe takes K gradients on each batch and Ditto two; the batch is read only once.
        """
        if self._read is None or self._read[0] is not batch:
            inputs = self.inputs(self.data.train[batch.numpy()], training=True)
            self._read = (batch, inputs, self.labels(batch))
        return self._read[1], self._read[2]

    def labels(self, batch: Batch) -> Tensor:
        """Labels of a batch (B,)."""
        return self.source.labels(self.data.train[batch.numpy()])

    def train_features(self, adapter: Tensor) -> Tensor:
        """Features (|D_i|, F) of the round's training examples for a fixed θ, computed once."""
        kept = self.kept_features(adapter)
        return (
            kept
            if kept is not None
            else self.keep_features(adapter, self.features(adapter, self.round_examples, True))
        )

    @property
    def round_examples(self) -> NDArray[np.int64]:
        """The training examples from which the round's batches are drawn."""
        chosen: NDArray[np.int64] = self.data.train[self._drawn.numpy()]
        return chosen

    def kept_features(self, adapter: Tensor) -> Tensor | None:
        """The features last passed to `keep_features`, if they belong to this θ."""
        if self._kept is None or not torch.equal(self._kept[0], adapter):
            return None
        return self._kept[1]

    def keep_features(self, adapter: Tensor, features: Tensor) -> Tensor:
        """Keep the features of `round_examples` for θ, by position in the data."""
        by_place = features.new_full((len(self.data.train), features.shape[1]), torch.nan)
        by_place[self._drawn.to(features.device)] = features
        self._kept = (adapter.detach(), by_place)
        return by_place


@dataclass(frozen=True)
class ExampleSite:
    """Client i and its examples; implements `federation.Site`."""

    client: int
    model: AdaptedModel
    source: Examples
    data: ClientData
    batch_size: int
    seed: int
    keep: Keep = _no_place
    examples_per_round: int | None = None
    measures: tuple[str, ...] = ALWAYS
    """The measures of every evaluation."""
    loss: LossConfig = CROSS_ENTROPY
    """The training loss; evaluations report plain cross-entropy."""

    def task(self, t: int, step: str) -> ExampleTask:
        """The client's objective; its batch order depends only on (seed, client, round, step).

        A personal model may depend on the batches drawn for it (Per-FedAvg): evaluation and export
        draw the same ones, so that the exported model is the tested one.
        """
        purpose = "personal" if step in ("evaluate", "keep", "assess", "export") else step
        order, dropout = (
            torch_generator(self.seed, what, self.client, t, purpose)
            for what in ("batches", "dropout")
        )
        return ExampleTask(
            self.model,
            self.source,
            self.data,
            self.batch_size,
            order,
            dropout,
            self.keep,
            self.drawn(t),
            self.measures,
            t,
            self.criterion,
            derive_seed(self.seed, "augmentation", self.client, t),
        )

    @property
    def criterion(self) -> Loss:
        """The client's training loss, which may depend on its training labels."""
        own = self.data.train if self.loss.looks_at_labels else self.data.train[:0]
        return Loss.of(self.loss, self.source.labels(own), self.source.class_names)

    def drawn(self, t: int) -> Tensor:
        """Positions in the training data that round t uses; all of them before round 1."""
        everything, most = len(self.data.train), self.examples_per_round
        if t == 0 or most is None or most >= everything:
            return torch.arange(everything)
        rng = torch_generator(self.seed, "examples", self.client, t)
        return torch.randperm(everything, generator=rng)[:most]
