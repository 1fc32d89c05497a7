"""Load a frozen text encoder with its tokenizer: a folder or hub id, or random weights."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoTokenizer, BertConfig, BertModel, PreTrainedModel

from pfedseq.errors import InputError
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.encoders import find_family
from pfedseq.model.encoders.encoder import Stacked, Towers
from pfedseq.model.encoders.family import Family
from pfedseq.model.encoders.loading import (
    find_optional,
    load_weights,
    quiet_transformers,
    read_config,
)
from pfedseq.model.encoders.parts import Part, Pooling, TextPart, joined, pooled
from pfedseq.model.encoders.tensor_files import UNREADABLE, reason
from pfedseq.model.encoders.token_model import TokenModel
from pfedseq.model.layout import AdapterLayout
from pfedseq.model.readout import TunedHead
from pfedseq.seeding import seeded

RANDOM = "random:bert-tiny"
PADDING, FIRST, WORDS = 0, 1, 2
"""Token numbers without a vocabulary: padding, start of text, and the first word."""
_WORD = re.compile(r"\w+|[^\w\s]")
_POOLING_FILE = "1_Pooling/config.json"
_SENTENCE_TRANSFORMERS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}

Tokenise = Callable[[Sequence[str], int], NDArray[np.int64]]
"""(texts, length) ↦ token numbers (n, length), truncated or padded."""


@dataclass(frozen=True)
class TextEncoder(TokenModel):
    """A frozen text encoder and its tokenizer; implements `encoder.Encoder`."""

    model: PreTrainedModel
    """In eval mode, without gradients and pooler."""
    family: Family
    tokenise: Tokenise
    padding: int
    """The number of the padding token."""
    pooling: Pooling
    """How the outputs over a text's tokens become its feature."""
    name: str
    tokenizer: Any = None
    """transformers' own; None for random weights, which have no vocabulary."""

    @property
    def tunes_head(self) -> bool:
        """True: every client tunes a head."""
        return True

    def readout(self, tower: nn.Module, num_classes: int) -> TunedHead:
        """The client's linear head."""
        return TunedHead(num_classes, self.feature_dim)

    @property
    def has_classifier(self) -> bool:
        """Whether transformers has a class with such a head."""
        return self.family.has_classifier

    def towers(self, first: int, inject: Callable[[nn.Module], None]) -> Towers:
        """The encoder in two towers, cut below layer `first`."""
        return self.family.towers(self.model, self.num_layers, first, inject, self._part)

    def stacked(
        self,
        plain: nn.Module,
        adapter: AdapterConfig,
        layout: AdapterLayout,
        precision: torch.dtype | None,
    ) -> Stacked | None:
        """A function for several clients' features in one pass; None if not supported."""
        return self.family.stacked(plain, adapter, layout, self.num_layers, precision)

    def feature_length(self, tower: nn.Module) -> float:
        """The root mean square length of the features, computed from the weights."""
        return self.family.feature_length(tower)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Several clients' texts as one batch, padded to the longest."""
        return joined(parts, self.padding)

    def checksum(self) -> str:
        """Changes with any weight and any option that affects the computation."""
        return self._part(self.model, self.num_layers, True).checksum()

    @property
    def embedding_dim(self) -> int:
        """The length of a word's embedding."""
        return int(self.model.get_input_embeddings().weight.shape[1])

    def embedded(self, tokens: Tensor) -> Tensor:
        """The mean word embedding (B, F) of texts given as token numbers (B, T).

        Embeddings are the frozen ones, divided by the standard deviation of all their entries.
        """
        table: Tensor = self.model.get_input_embeddings().weight
        mask = tokens.cpu() != self.padding
        words = table[tokens.cpu()] / table.std()
        return pooled(words, mask.long(), "mean").to(tokens.device)

    def _part(self, model: nn.Module, num_layers: int, to_the_top: bool) -> Part:
        options = self.family.options(self.config)
        pooling = self.pooling if to_the_top else None
        return TextPart(model, num_layers, options, self.padding, pooling)


def load_text_encoder(name: str, pooling: Pooling | None = None, seed: int = 0) -> TextEncoder:
    """A folder or hub id with its tokenizer, or `random:bert-tiny`.

    `pooling` defaults to that of a sentence-transformers checkpoint, else to the mean.
    """
    if name == RANDOM:
        return _random(name, pooling or "mean", seed)
    check_reads_texts(name)
    family = find_family(read_config(name).get("model_type"), "text", name)
    model = load_weights(name, family)
    tokenizer = _tokenizer(name)

    def tokenise(texts: Sequence[str], length: int) -> NDArray[np.int64]:
        batch = tokenizer(
            list(texts),
            truncation=True,
            max_length=length,
            padding="max_length",
            padding_side="right",
        )
        return np.asarray(batch["input_ids"], dtype=np.int64)

    return TextEncoder(
        model,
        family,
        tokenise,
        int(tokenizer.pad_token_id),
        pooling or _published_pooling(name) or "mean",
        name,
        tokenizer,
    )


def check_reads_texts(name: str) -> None:
    """Refuse a backbone whose name shows that it reads images."""
    if name != RANDOM and (name == "demo" or name.startswith("random:")):
        raise InputError(
            f"backbone {name!r} reads images: for texts use the folder or hub id of a text "
            f"encoder, or {RANDOM}"
        )


def _tokenizer(name: str) -> Any:
    try:
        with quiet_transformers(progress_bar=not Path(name).is_dir()):
            tokenizer = AutoTokenizer.from_pretrained(name)
    except UNREADABLE as error:
        raise InputError(
            f"cannot read the tokenizer of backbone {name!r}: {reason(error)}"
        ) from error
    if tokenizer.pad_token_id is None:
        raise InputError(f"the tokenizer of backbone {name!r} has no padding token: give it one")
    return tokenizer


def _published_pooling(name: str) -> Pooling | None:
    """The pooling of a sentence-transformers checkpoint; None for other checkpoints."""
    said = find_optional(name, _POOLING_FILE)
    chosen = [
        key for key, value in said.items() if key.startswith("pooling_mode_") and value is True
    ]
    if not chosen:
        return None
    if len(chosen) > 1 or chosen[0] not in _SENTENCE_TRANSFORMERS:
        raise InputError(
            f"backbone {name!r} pools by {', '.join(chosen)} ({_POOLING_FILE}): set model.pooling "
            "to mean, first, last or max"
        )
    return _SENTENCE_TRANSFORMERS[chosen[0]]


def _random(name: str, pooling: Pooling, seed: int) -> TextEncoder:
    """A random encoder of two layers of width 128, which numbers words by their checksums."""
    config = BertConfig(
        vocab_size=8192,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        pad_token_id=PADDING,
    )
    with seeded(seed):
        model = BertModel(config, add_pooling_layer=False)
    family = find_family("bert", "text", name)
    tokenise = _by_checksum(config.vocab_size)
    frozen = model.requires_grad_(False).eval()
    return TextEncoder(frozen, family, tokenise, PADDING, pooling, name)


def _by_checksum(vocabulary: int) -> Tokenise:
    """A tokenizer that numbers words by checksum, since random weights have no vocabulary."""

    def tokenise(texts: Sequence[str], length: int) -> NDArray[np.int64]:
        tokens = np.full((len(texts), length), PADDING, dtype=np.int64)
        tokens[:, 0] = FIRST
        for row, text in zip(tokens, texts, strict=True):
            words = _WORD.findall(text.lower())[: length - 1]
            checksums = [zlib.crc32(word.encode()) for word in words]
            row[1 : 1 + len(words)] = [WORDS + c % (vocabulary - WORDS) for c in checksums]
        return tokens

    return tokenise
