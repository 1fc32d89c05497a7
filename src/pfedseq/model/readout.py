"""Maps features to logits: a head that clients tune, or a frozen output layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from pfedseq.measures import Score, TokenPredictions, score, score_tokens
from pfedseq.seeding import torch_generator

PADDING, READ, PREDICTED = 0, 1, 2
"""Roles of a dialogue's tokens: padding, only read, or read with the next token predicted."""
EVALUATION_BATCH = 128
HEAD_STD = 0.02
"""Standard deviation of the initial head weights, as for ViT's classification head."""
EVALUATION_DIALOGUES = 16
"""Dialogues per evaluation pass; fewer than images, since each has many tokens."""
TOKENS_AT_ONCE = 1024
"""Tokens whose logits over the vocabulary are in memory at once."""


class Readout(Protocol):
    """Features ↦ logits, given ω; holds no client state."""

    @property
    def task_type(self) -> str | None:
        """PEFT's task type for a model with this output."""

    @property
    def pass_size(self) -> int:
        """Examples per evaluation pass."""

    def initial(self, seed: int) -> Tensor:
        """ω^0 (H,)."""

    def count(self, inputs: Tensor) -> int:
        """The number of feature vectors for inputs (B, …)."""

    def logits(self, head: Tensor, features: Tensor) -> Tensor:
        """(n, C) of features (n, F)."""

    def stacked_logits(self, heads: Tensor, features: Tensor) -> Tensor:
        """(clients, n, C) of features (clients, n, F), with one head per client."""

    def named(self, head: Tensor) -> Mapping[str, Tensor]:
        """ω as the named weights of a layer; {} if ω is empty."""

    def score(
        self, head: Tensor, features: Tensor, labels: Tensor, measures: Sequence[str], full: bool
    ) -> Score:
        """The measures on features (n, F) with labels (n,); with `full` also the counts."""


@dataclass(frozen=True)
class TunedHead:
    """The client's linear layer: ω is its weight (C, F), row by row, followed by its bias (C,)."""

    num_classes: int
    feature_dim: int
    task_type: str | None = None
    pass_size: int = EVALUATION_BATCH

    def initial(self, seed: int) -> Tensor:
        """Small random weights and a bias of zero."""
        head = torch.zeros(self.num_classes * (self.feature_dim + 1))
        weights = head[: self.num_classes * self.feature_dim]
        weights.normal_(std=HEAD_STD, generator=torch_generator(seed, "head"))
        return head

    def count(self, inputs: Tensor) -> int:
        """One feature vector per example."""
        return len(inputs)

    def logits(self, head: Tensor, features: Tensor) -> Tensor:
        """(n, C) of features (n, F)."""
        return nn.functional.linear(features, *self.split(head))

    def stacked_logits(self, heads: Tensor, features: Tensor) -> Tensor:
        """The logits of all clients, by one batched product."""
        weights, biases = self.split(heads)
        return torch.baddbmm(biases.unsqueeze(1), features, weights.mT)

    def split(self, head: Tensor) -> tuple[Tensor, Tensor]:
        """The weight (…, C, F) and the bias (…, C), for heads (…, H)."""
        weight, bias = head.split([self.num_classes * self.feature_dim, self.num_classes], -1)
        return weight.unflatten(-1, (self.num_classes, self.feature_dim)), bias

    def named(self, head: Tensor) -> Mapping[str, Tensor]:
        """The layer's weight and bias."""
        weight, bias = self.split(head)
        return {"weight": weight, "bias": bias}

    def score(
        self, head: Tensor, features: Tensor, labels: Tensor, measures: Sequence[str], full: bool
    ) -> Score:
        """The measures of all predictions; with `full` also their counts."""
        return score(self.logits(head, features), labels, measures, counts=full)


@dataclass(frozen=True)
class FrozenHead:
    """A language model's own output layer, which stays frozen, so ω is empty.

    A feature belongs to a token of a dialogue, and its label is the token that follows.
    """

    weight: Tensor
    """(V, F), one row for each token of the vocabulary."""
    task_type: str | None = "CAUSAL_LM"
    pass_size: int = EVALUATION_DIALOGUES

    def initial(self, seed: int) -> Tensor:
        """An empty ω (0,)."""
        return torch.zeros(0)

    def count(self, inputs: Tensor) -> int:
        """The number of predicted tokens in inputs (B, T, …) of a `DialoguePart`."""
        return int((inputs[..., -1] == PREDICTED).sum())

    def logits(self, head: Tensor, features: Tensor) -> Tensor:
        """(n, V) of features (n, F), independent of ω."""
        return nn.functional.linear(features, self.weight)

    def stacked_logits(self, heads: Tensor, features: Tensor) -> Tensor:
        """The logits of all clients, by the same layer."""
        return nn.functional.linear(features, self.weight)

    def named(self, head: Tensor) -> Mapping[str, Tensor]:
        """{}: the client has no head."""
        return {}

    def score(
        self, head: Tensor, features: Tensor, labels: Tensor, measures: Sequence[str], full: bool
    ) -> Score:
        """The measures over all tokens; counts are not computed for tokens."""
        parts = zip(features.split(TOKENS_AT_ONCE), labels.split(TOKENS_AT_ONCE), strict=True)
        predictions = TokenPredictions.of((self.logits(head, own), said) for own, said in parts)
        return score_tokens(predictions, measures)
