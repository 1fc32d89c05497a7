"""A model's predictions on a split, and the counts that a client may send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Values = NDArray[np.float64]
Classes = NDArray[np.int64]

CONFIDENCE_BINS = 15
"""Number of equal-width bins of the top class's probability."""
LOG_ODDS_REACH, LOG_ODDS_BINS = 10.0, 200
"""Of the histograms of log-odds: from −10 to 10 in steps of 0.1; what lies beyond is in the last
bins."""
MOST = 10**12
"""Largest count that is read; sums of such numbers over all clients still fit into 64 bits."""
MOST_HISTOGRAM_CLASSES = 100
"""With more classes, no histograms are sent, and AUROC and average precision are not pooled."""


@dataclass(frozen=True)
class Predictions:
    """A model's predictions for all examples of one split of a client's data."""

    logits: Tensor
    """(n, C)."""
    labels: Classes
    """(n,)."""
    predicted: Classes
    """(n,): the predicted classes."""

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> Predictions:
        """Predictions of examples with these logits (n, C) and labels (n,)."""
        return cls(logits, labels.cpu().numpy(), logits.argmax(1).cpu().numpy())

    @cached_property
    def probabilities(self) -> Values:
        """(n, C), in double precision."""
        found: Values = self.logits.double().softmax(1).cpu().numpy()
        return found

    @cached_property
    def present(self) -> Classes:
        """The classes that the split has examples of."""
        return np.unique(self.labels)

    @property
    def num_classes(self) -> int:
        """C, the number of classes."""
        return self.logits.shape[1]


@dataclass(frozen=True)
class Counts:
    """Counts of a client's predictions, which contain no example.

    Integer arrays except for `confidence`; the counts of several clients can be added.
    """

    confusion: Classes
    """(·, 3): true class, predicted class, how many examples; only what occurs."""
    reliability: Classes
    """(CONFIDENCE_BINS, 2): examples of that confidence, and how many of them are right."""
    confidence: Values
    """(CONFIDENCE_BINS,): the sum of their confidences."""
    histograms: Classes
    """(·, 4): class, 1 for examples of that class and 0 for others, bin of the log-odds, how many;
    empty with more than `MOST_HISTOGRAM_CLASSES`."""
    num_classes: int
    """C."""

    @classmethod
    def of(cls, predictions: Predictions) -> Counts:
        """The counts of one client's predictions."""
        pairs = (predictions.labels, predictions.predicted)
        size = predictions.num_classes
        reliability, confidence = reliability_of(predictions)
        return cls(
            _counted(pairs, (size, size)), reliability, confidence, _histograms(predictions), size
        )

    def tensors(self) -> dict[str, Tensor]:
        """The counts as tensors of a message."""
        return {name: torch.from_numpy(getattr(self, name)) for name in _ARRAYS}

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], num_classes: int) -> Counts | None:
        """Read what `tensors` wrote; None for anything else."""
        try:
            confusion, reliability, confidence, histograms = (
                tensors[name].cpu().numpy() for name in _ARRAYS
            )
        except KeyError:
            return None
        whole = (confusion, reliability, histograms)
        shapes = (confusion.shape[1:], reliability.shape, confidence.shape, histograms.shape[1:])
        if (
            shapes != ((3,), (CONFIDENCE_BINS, 2), (CONFIDENCE_BINS,), (4,))
            or any(a.dtype != np.int64 or (a < 0).any() or (a > MOST).any() for a in whole)
            or confidence.dtype != np.float64
            or (confusion[:, :2] >= num_classes).any()
            or (histograms[:, :3] >= (num_classes, 2, LOG_ODDS_BINS)).any()
        ):
            return None
        return cls(confusion, reliability, confidence, histograms, num_classes)

    @property
    def examples(self) -> int | None:
        """The number of examples that were counted; None if the tables contradict each other."""
        number, right = self.reliability.sum(axis=0)
        hits = self.confusion[self.confusion[:, 0] == self.confusion[:, 1], 2].sum()
        cells = number * self.num_classes if self.num_classes <= MOST_HISTOGRAM_CLASSES else 0
        agreed = (
            number == self.confusion[:, 2].sum()
            and right == hits
            and cells == self.histograms[:, 3].sum()
        )
        return int(number) if agreed else None

    @classmethod
    def pooled(cls, some: Sequence[Counts]) -> Counts:
        """The counts of all clients together."""
        return cls(
            _added([one.confusion for one in some]),
            np.sum([one.reliability for one in some], axis=0),
            np.sum([one.confidence for one in some], axis=0),
            _added([one.histograms for one in some])
            if all(len(one.histograms) for one in some)
            else np.zeros((0, 4), dtype=np.int64),
            some[0].num_classes,
        )

    def to_json(self) -> dict[str, Any]:
        """The counts as a JSON object of lists."""
        return {name: getattr(self, name).tolist() for name in _ARRAYS}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], num_classes: int) -> Counts:
        """Read what `to_json` wrote."""
        return cls(
            np.array(values["confusion"], dtype=np.int64).reshape(-1, 3),
            np.array(values["reliability"], dtype=np.int64),
            np.array(values["confidence"], dtype=np.float64),
            np.array(values["histograms"], dtype=np.int64).reshape(-1, 4),
            num_classes,
        )

    def matrix(self) -> Classes:
        """The confusion matrix (C, C): rows are true classes, columns predicted ones."""
        found = np.zeros((self.num_classes, self.num_classes), dtype=np.int64)
        true, predicted, count = self.confusion.T
        found[true, predicted] = count
        return found


_ARRAYS = ("confusion", "reliability", "confidence", "histograms")


def reliability_of(predictions: Predictions) -> tuple[Classes, Values]:
    """By bin of confidence: (·, 2) examples and correct ones; (·,) summed confidence."""
    labels = predictions.labels
    top = predictions.probabilities.max(1) if len(labels) else np.zeros(0)
    places = np.clip(np.ceil(top * CONFIDENCE_BINS).astype(np.int64) - 1, 0, CONFIDENCE_BINS - 1)
    right = predictions.predicted == labels
    examples, correct, confidence = (
        np.bincount(places, weights, minlength=CONFIDENCE_BINS) for weights in (None, right, top)
    )
    return np.stack([examples, correct], axis=1).astype(np.int64), confidence.astype(np.float64)


def _counted(columns: Sequence[Classes], sizes: tuple[int, ...]) -> Classes:
    """The distinct rows of these columns, with their frequency as the last column."""
    codes, counts = np.unique(np.ravel_multi_index(columns, sizes), return_counts=True)
    return np.stack([*np.unravel_index(codes, sizes), counts], axis=1)


def _added(tables: Sequence[Classes]) -> Classes:
    """One table of all rows; the last columns of equal rows are added."""
    rows = np.concatenate(tables)
    if not len(rows):
        return rows
    columns = rows[:, :-1].T
    sizes = tuple(columns.max(axis=1) + 1)
    codes, places = np.unique(np.ravel_multi_index(tuple(columns), sizes), return_inverse=True)
    sums = np.bincount(places.reshape(-1), rows[:, -1], minlength=len(codes))
    return np.stack([*np.unravel_index(codes, sizes), sums.astype(np.int64)], axis=1)


def _histograms(predictions: Predictions) -> Classes:
    number, classes = predictions.probabilities.shape
    if classes > MOST_HISTOGRAM_CLASSES:
        return np.zeros((0, 4), dtype=np.int64)
    tiny = np.finfo(np.float64).tiny
    likely = predictions.probabilities
    odds = np.log(np.maximum(likely, tiny)) - np.log(np.maximum(1 - likely, tiny))
    bins = np.floor((odds / LOG_ODDS_REACH + 1) / 2 * LOG_ODDS_BINS).astype(np.int64)
    own = predictions.labels[:, None] == np.arange(classes)
    each = np.broadcast_to(np.arange(classes), (number, classes))
    cells = (each, own.astype(np.int64), np.clip(bins, 0, LOG_ODDS_BINS - 1))
    return _counted([cell.reshape(-1) for cell in cells], (classes, 2, LOG_ODDS_BINS))
