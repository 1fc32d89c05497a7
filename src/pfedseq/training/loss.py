"""The loss of local training. Reported losses are plain cross-entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfedseq.base_config import BaseConfig
from pfedseq.errors import InputError

NO_LABEL = -100
"""Label of padding."""


class LossConfig(BaseConfig):
    """The loss of local training."""

    loss: Literal["cross_entropy", "balanced_softmax"] = Field(
        "cross_entropy",
        description="balanced_softmax adds the logarithm of the client's own label counts to the "
        "logits in training, for skewed labels; paper: cross_entropy",
    )
    label_smoothing: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the target that is spread over all classes, such as 0.1",
    )
    class_weights: Literal["balanced"] | tuple[float, ...] | dict[str, float] | None = Field(
        None,
        description="weight of each class in the loss: `balanced` by inverse frequency at each "
        "client, a number for each class in order, or { name = weight }, others 1",
    )

    @field_validator("class_weights", mode="before")
    @classmethod
    def _positive_numbers(cls, given: Any) -> Any:
        numbers = list(given.values()) if isinstance(given, dict) else given
        if given in (None, "balanced"):
            return given
        if not isinstance(numbers, list | tuple) or not all(
            isinstance(x, int | float) and math.isfinite(x) and x > 0 for x in numbers
        ):
            raise ValueError(
                "it must be 'balanced', a list with a number greater than 0 for each class, or a "
                "table of class names with such numbers"
            )
        return given

    @model_validator(mode="after")
    def _absent_classes_take_no_share(self) -> Self:
        if self.loss == "balanced_softmax" and self.label_smoothing:
            raise ValueError(
                "label_smoothing and balanced_softmax exclude each other: smoothing targets "
                "every class, balanced softmax excludes classes that a client does not have; "
                "choose one"
            )
        return self

    @property
    def looks_at_labels(self) -> bool:
        """Whether the loss depends on the client's label distribution."""
        return self.loss != "cross_entropy" or self.class_weights is not None


CROSS_ENTROPY = LossConfig()


@dataclass(frozen=True)
class Loss:
    """One client's loss: a mean over examples, weighted by their classes' weights."""

    smoothing: float = 0.0
    weights: Tensor | None = None
    """(C,)."""
    shift: Tensor | None = None
    """(C,): added to the logits."""

    @classmethod
    def of(cls, config: LossConfig, labels: Tensor, class_names: Sequence[str]) -> Loss:
        """The configured loss for a client with these training labels (n,)."""
        if not config.looks_at_labels:
            return cls(config.label_smoothing)
        counts = torch.bincount(labels, minlength=len(class_names)).to(torch.float32)
        return cls(
            config.label_smoothing,
            _weights(config.class_weights, counts, class_names),
            counts.log() if config.loss == "balanced_softmax" else None,
        )

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean over a batch: logits (B, C), labels (B,)."""
        if self.shift is not None:
            logits = logits + self.shift
        return cross_entropy(logits, labels, self.weights, label_smoothing=self.smoothing)


def mean_losses(losses: Sequence[Loss], logits: Tensor, labels: Tensor) -> Tensor:
    """Each client's own loss of its own batch: (clients,) of logits (clients, B, C).

    The labels (clients, B) are `NO_LABEL` where a shorter batch is padded.
    """
    smoothing = losses[0].smoothing
    if losses[0].weights is None and losses[0].shift is None and not smoothing:
        each = cross_entropy(logits.mT, labels, ignore_index=NO_LABEL, reduction="none")
        return each.sum(1) / (labels != NO_LABEL).sum(1)
    shifts = [loss.shift for loss in losses if loss.shift is not None]
    weights = [loss.weights for loss in losses if loss.weights is not None]
    if shifts:
        logits = logits + torch.stack(shifts).unsqueeze(1)
    surprise = -logits.log_softmax(-1)  # (clients, B, C)
    there = labels != NO_LABEL
    wanted = labels.where(there, 0).unsqueeze(-1)
    by_class = torch.stack(weights) if weights else logits.new_ones(len(losses), logits.shape[-1])
    weight = by_class.gather(1, wanted.squeeze(-1)) * there  # (clients, B)
    own = surprise.gather(-1, wanted).squeeze(-1).masked_fill(~there, 0)  # it may be infinite
    total = (weight * own).sum(1)
    if smoothing:
        spread = (surprise * by_class.unsqueeze(1)).mean(-1) * there
        total = (1 - smoothing) * total + smoothing * spread.sum(1)
    return total / weight.sum(1)


def _weights(
    given: str | Sequence[float] | dict[str, float] | None,
    counts: Tensor,
    class_names: Sequence[str],
) -> Tensor | None:
    """Class weights (C,), or None if all are equal."""
    if given is None:
        return None
    if given == "balanced":  # n / (classes present · n_c), as in scikit-learn
        average = counts.sum() / (counts > 0).sum()
        return torch.where(counts > 0, average / counts, 0.0)
    if isinstance(given, dict):
        for name in given:
            if name not in class_names:
                near = get_close_matches(name, class_names, n=1, cutoff=0.5)
                known = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(class_names)}"
                raise InputError(f"training.class_weights names an unknown class {name!r}; {known}")
        return counts.new_tensor([given.get(name, 1.0) for name in class_names])
    if len(given) != len(class_names):
        raise InputError(
            f"training.class_weights has {len(given)} numbers for {len(class_names)} classes "
            f"({', '.join(class_names[:5])}{', …' if len(class_names) > 5 else ''})"
        )
    return counts.new_tensor([float(weight) for weight in given])
