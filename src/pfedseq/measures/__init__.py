"""The measures of a model's predictions: one list, used by all tables, pages and files.

A measure is a function of the predictions on all examples of a client's split, never an average of
batches. Where it is undefined (AUROC with examples of one class only) it is None: the client is
excluded from means, and the number of excluded clients is reported.

No example leaves a client. It sends the named numbers and, after the last round, `Counts`, from
which measures over all clients' pooled examples are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfedseq.measures.counts import Classes, Counts, Predictions, Values, reliability_of
from pfedseq.measures.tokens import LARGEST_LOSS, TokenPredictions
from pfedseq.plugins import Registry

__all__ = [
    "ALWAYS",
    "MEASURES",
    "PERCENT",
    "PLAIN",
    "Counts",
    "Format",
    "Measure",
    "Predictions",
    "Score",
    "TokenPredictions",
    "find_measure",
    "register_measure",
    "score",
    "score_tokens",
]


@dataclass(frozen=True)
class Format:
    """The format of a measure's values: multiplied by `scale`, in `unit`, with `digits`."""

    scale: float
    unit: str
    digits: int

    def __call__(self, value: float, *, sign: bool = False) -> str:
        """The number alone: '61.20'."""
        return f"{self.scale * value:{'+' * sign}.{self.digits}f}"

    def with_unit(self, value: float) -> str:
        """'61.20 %'."""
        return f"{self(value)} {self.unit}".strip()

    def label(self, title: str, unit: str = "({})") -> str:
        """For an axis, 'accuracy (%)'; or as `unit` says."""
        return f"{title} {unit.format(self.unit)}" if self.unit else title


PERCENT = Format(100, "%", 2)
PLAIN = Format(1, "", 4)


@dataclass(frozen=True)
class Measure:
    """A named number of a model's predictions."""

    name: str
    """The key in metrics.jsonl and summary.json; scikit-learn's name if it has one."""
    title: str
    """The name in tables."""
    higher_is_better: bool
    compute: Callable[[Any], float | None]
    """Computes the value from all predictions on a non-empty split; None if undefined."""
    format: Format = PERCENT
    pooled: Callable[[Counts], float | None] | Literal["mean"] | None = None
    """The value over all clients' pooled examples: computed from counts, or as the sample-weighted
    mean; None if not available."""
    bounds: tuple[float, float] = (0.0, 1.0)
    """The range of valid values; values outside are refused."""
    of: tuple[type, ...] = (Predictions,)
    """The kind of predictions it applies to: classes, or tokens of texts."""
    geometric: bool = False
    """Whether the sample-weighted mean is geometric."""

    def value(self, predictions: Predictions | TokenPredictions) -> float | None:
        """The value, or None if undefined."""
        return self.compute(predictions) if isinstance(predictions, self.of) else None

    def weighted_mean(self, values: Values, weights: Values) -> float:
        """The sample-weighted mean over clients; for perplexity, that of all tokens."""
        if self.geometric:
            return float(np.exp(np.average(np.log(values), weights=weights)))
        return float(np.average(values, weights=weights))

    def worst_first(self, values: Sequence[float]) -> list[float]:
        """The values in order."""
        return sorted(values, reverse=not self.higher_is_better)

    def is_better(self, one: float, other: float) -> bool:
        """Whether `one` is the better value."""
        return one > other if self.higher_is_better else one < other

    def gain(self, one: float, other: float) -> float:
        """By how much `one` is better; negative where it is worse."""
        return one - other if self.higher_is_better else other - one

    def rank(self, value: float) -> float:
        """A number that is higher for better values."""
        return value if self.higher_is_better else -value


def _accuracy(p: Predictions | TokenPredictions) -> float:
    return float((p.predicted == p.labels).mean())


def _loss(p: Predictions | TokenPredictions) -> float:
    if isinstance(p, TokenPredictions):
        return float(p.losses.mean())
    labels = torch.from_numpy(p.labels).to(p.logits.device)
    return float(cross_entropy(p.logits, labels, reduction="sum")) / len(p.labels)


def _perplexity(p: TokenPredictions) -> float:
    """exp of the mean loss over all tokens, with the loss capped so that it is finite."""
    return float(np.exp(min(_loss(p), LARGEST_LOSS)))


Pairs = tuple[Classes, Classes, Classes | None]
"""True and predicted classes, and how often each pair counts (None: once)."""


def _class_totals(pairs: Pairs) -> tuple[Values, Values, Values]:
    """By class: true positives, examples of the class, and predictions of the class."""
    true, predicted, weights = pairs
    weights = np.ones(len(true), dtype=np.int64) if weights is None else weights
    size = int(max(true.max(initial=-1), predicted.max(initial=-1))) + 1
    right = true == predicted
    found, there, taken = (
        np.bincount(of, number, minlength=size).astype(np.float64)
        for of, number in ((true[right], weights[right]), (true, weights), (predicted, weights))
    )
    return found, there, taken


def _balanced_accuracy(pairs: Pairs) -> float:
    """The mean recall over the classes that there are examples of."""
    found, there, _ = _class_totals(pairs)
    return float((found[there > 0] / there[there > 0]).mean())


def _f1_by_class(pairs: Pairs) -> tuple[Values, Values]:
    """F1 of the classes that occur among the labels or the predictions, and their examples."""
    found, there, taken = _class_totals(pairs)
    seen = there + taken > 0
    return 2 * found[seen] / (there + taken)[seen], there[seen]


def _macro_f1(pairs: Pairs) -> float:
    return float(_f1_by_class(pairs)[0].mean())


def _weighted_f1(pairs: Pairs) -> float:
    by_class, examples = _f1_by_class(pairs)
    return float(np.average(by_class, weights=examples))


def _recall_of(wanted: int) -> Callable[[Pairs], float | None]:
    """The recall of one of two classes; None without examples of it."""

    def recall(pairs: Pairs) -> float | None:
        found, there, _ = _class_totals(pairs)
        return float(found[wanted] / there[wanted]) if there[wanted : wanted + 1].any() else None

    return recall


def _from_classes(formula: Callable[[Pairs], float | None], *, two: bool = False) -> dict[str, Any]:
    """A measure of true and predicted classes: of one client's, and exactly of all clients'."""

    def compute(p: Predictions) -> float | None:
        return None if two and p.num_classes != 2 else formula((p.labels, p.predicted, None))

    def pooled(counts: Counts) -> float | None:
        if two and counts.num_classes != 2:
            return None
        true, predicted, number = counts.confusion.T
        return formula((true, predicted, number))

    return {"compute": compute, "pooled": pooled}


Curve = tuple[Values, Values]
"""True and false positives at each threshold, from the highest score down."""


def _curve(own: NDArray[np.bool_], scores: NDArray[Any], weights: Classes | None) -> Curve:
    order = np.argsort(-scores, kind="stable")
    number = np.ones(len(order)) if weights is None else weights[order].astype(np.float64)
    hits, misses = (np.cumsum(number * mine) for mine in (own[order], ~own[order]))
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)  # ties
    return hits[ends], misses[ends]


def _area_under_roc(curve: Curve) -> float:
    hits, misses = (np.concatenate([[0.0], part]) for part in curve)
    area = (np.diff(misses) * (hits[1:] + hits[:-1])).sum() / 2
    return float(area / (hits[-1] * misses[-1]))


def _average_precision(curve: Curve) -> float:
    hits, misses = curve
    return float((np.diff(hits, prepend=0.0) * hits / (hits + misses)).sum() / hits[-1])


def _from_scores(formula: Callable[[Curve], float]) -> dict[str, Any]:
    """A measure of one class's scores against the rest's: the mean over classes with examples.

    Of two classes it is that of the second. None where all examples are of one class.
    """

    def compute(p: Predictions) -> float | None:
        if len(p.present) < 2:
            return None
        classes = [1] if p.num_classes == 2 else p.present
        curves = [_curve(p.labels == c, p.probabilities[:, c], None) for c in classes]
        return float(np.mean([formula(curve) for curve in curves]))

    def pooled(counts: Counts) -> float | None:
        classes, own, bins, number = counts.histograms.T
        found = []
        for c in [1] if counts.num_classes == 2 else np.unique(classes):
            here = classes == c
            if len(np.unique(own[here])) == 2:
                found.append(formula(_curve(own[here] == 1, bins[here], number[here])))
        return float(np.mean(found)) if found else None

    return {"compute": compute, "pooled": pooled}


def _ece(reliability: Classes, confidence: Values) -> float:
    """The mean gap between confidence and accuracy over equally wide bins of confidence."""
    examples, correct = reliability.T
    return float(np.abs(correct - confidence).sum() / examples.sum())


def _client_ece(p: Predictions) -> float:
    return _ece(*reliability_of(p))


def _pooled_ece(counts: Counts) -> float:
    return _ece(counts.reliability, counts.confidence)


def _brier(p: Predictions) -> float:
    """The mean squared error of the probabilities; halved for two classes."""
    truth = p.labels[:, None] == np.arange(p.num_classes)
    distance = float(((p.probabilities - truth) ** 2).sum(1).mean())
    return distance / 2 if p.num_classes == 2 else distance


MEASURES: Registry[Measure] = Registry(
    "measure",
    "pfedseq.measures",
    Measure,
    [
        Measure("accuracy", "accuracy", True, _accuracy, pooled="mean"),
        Measure(
            "balanced_accuracy", "balanced accuracy", True, **_from_classes(_balanced_accuracy)
        ),
        Measure("macro_f1", "macro F1", True, **_from_classes(_macro_f1)),
        Measure("weighted_f1", "weighted F1", True, **_from_classes(_weighted_f1)),
        Measure("auroc", "AUROC", True, **_from_scores(_area_under_roc)),
        Measure("average_precision", "average precision", True, **_from_scores(_average_precision)),
        Measure("sensitivity", "sensitivity", True, **_from_classes(_recall_of(1), two=True)),
        Measure("specificity", "specificity", True, **_from_classes(_recall_of(0), two=True)),
        Measure("ece", "calibration error", False, _client_ece, pooled=_pooled_ece),
        Measure("brier", "Brier score", False, _brier, PLAIN, "mean", (0.0, 2.0)),
        Measure(
            "perplexity",
            "perplexity",
            False,
            _perplexity,
            Format(1, "", 3),
            "mean",
            (1.0, inf),
            (TokenPredictions,),
            geometric=True,
        ),
        Measure(
            "token_accuracy",
            "token accuracy",
            True,
            _accuracy,
            pooled="mean",
            of=(TokenPredictions,),
        ),
        Measure(
            "loss", "loss", False, _loss, PLAIN, "mean", (0.0, inf), (Predictions, TokenPredictions)
        ),
    ],
)
"""All measures by name. Another one is a function and a line here, or a plug-in."""
ALWAYS = ("accuracy", "loss")
"""The measures of every evaluation of classes."""


find_measure = MEASURES.find
register_measure = MEASURES.register


@dataclass(frozen=True)
class Score:
    """A model's measures on one split of a client's data."""

    values: Mapping[str, float]
    """Values by measure; undefined measures are missing."""
    num_examples: int
    counts: Counts | None = None

    def __getitem__(self, name: str) -> float:
        return self.values[name]


def score(
    logits: Tensor, labels: Tensor, measures: Sequence[str] = ALWAYS, *, counts: bool = False
) -> Score:
    """The named measures of predictions (n, C) on all n examples of a split.

    Without examples, accuracy and loss are zero and all other measures are undefined.
    """
    predictions = Predictions.of(logits, labels)
    if not len(predictions.labels):
        return Score(dict.fromkeys(ALWAYS, 0.0), 0, Counts.of(predictions) if counts else None)
    return Score(
        _values(predictions, measures),
        len(predictions.labels),
        Counts.of(predictions) if counts else None,
    )


def score_tokens(predictions: TokenPredictions, measures: Sequence[str]) -> Score:
    """The named measures of the tokens of a split, which are its examples; no counts are sent.

    Without any, the loss is zero.
    """
    total = len(predictions.labels)
    return Score(_values(predictions, measures) if total else {"loss": 0.0}, total)


def _values(
    predictions: Predictions | TokenPredictions, measures: Sequence[str]
) -> dict[str, float]:
    found = {name: find_measure(name).value(predictions) for name in measures}
    return {name: value for name, value in found.items() if value is not None}
