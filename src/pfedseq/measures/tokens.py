"""A language model's predictions of the tokens of texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfedseq.measures.counts import Classes, Values

LARGEST_LOSS = 700.0
"""exp of a larger loss would not be finite."""


@dataclass(frozen=True)
class TokenPredictions:
    """A model's predictions for all counted tokens of a split; logits are not kept."""

    losses: Values
    """(n,): cross-entropy of each token."""
    predicted: Classes
    """(n,): the predicted tokens."""
    labels: Classes
    """(n,): the true tokens."""

    @classmethod
    def of(cls, parts: Iterable[tuple[Tensor, Tensor]]) -> TokenPredictions:
        """Predictions from parts of logits (·, V) with their tokens (·,)."""
        losses, predicted, labels = [np.zeros(0)], [_NONE], [_NONE]
        for logits, tokens in parts:
            each = cross_entropy(logits, tokens, reduction="none")
            losses.append(each.to("cpu", torch.float64).numpy())
            predicted.append(logits.argmax(1).cpu().numpy())
            labels.append(tokens.cpu().numpy())
        return cls(np.concatenate(losses), np.concatenate(predicted), np.concatenate(labels))


_NONE = np.zeros(0, dtype=np.int64)
