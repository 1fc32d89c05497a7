"""Texts by index, as the adapted model reads them; implements `task.Examples`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfedseq.data.auxiliary import AuxiliaryConfig
from pfedseq.data.dataset import ClientData, TextSet
from pfedseq.data.image_store import Report
from pfedseq.data.text import load_texts
from pfedseq.errors import InputError
from pfedseq.model.encoders.parts import Part
from pfedseq.model.text_encoder import TextEncoder
from pfedseq.model.token_store import Kept, Prefix, Storage, tokens_for
from pfedseq.seeding import torch_generator

GENERATED_TEXTS = 2000


@dataclass(frozen=True)
class TextSource:
    """Token numbers and labels by index; implements `task.Examples`."""

    texts: TextSet | None
    """None if labels are not needed."""
    tokens: NDArray[np.int64]
    """(n, T)."""
    encoder: TextEncoder
    device: torch.device
    kept: Callable[[NDArray[np.int64]], Tensor] | None = None
    """Reads the stored outputs of the frozen layers below the first adapter; None if not stored."""

    @classmethod
    def of(
        cls, texts: TextSet, encoder: TextEncoder, max_tokens: int, device: torch.device
    ) -> TextSource:
        """All texts as tokens, truncated to `max_tokens`."""
        longest = encoder.most_tokens
        if max_tokens > longest:
            raise InputError(
                f"data.max_tokens = {max_tokens}, but backbone {encoder.name!r} reads {longest}"
            )
        tokens = encoder.tokenise(texts.texts, max_tokens)
        return cls(texts, tokens, encoder, device)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the C classes."""
        return () if self.texts is None else self.texts.class_names

    def inputs(self, indices: NDArray[np.int64]) -> Tensor:
        """Token numbers (B, T), or the frozen layers' outputs (B, T, F + 1).

        T is the length of the batch's longest text.
        """
        rows = trimmed(self.tokens[indices], self.encoder.padding)
        if self.kept is None:
            return torch.from_numpy(rows).to(self.device)
        kept = self.kept(indices)[:, : rows.shape[1]]
        return kept.to(self.device, torch.float32)

    def numbers(self, indices: NDArray[np.int64]) -> Tensor:
        """(B, max_tokens): token numbers with full padding."""
        return torch.from_numpy(self.tokens[indices]).to(self.device)

    def training_inputs(self, indices: NDArray[np.int64], stream: int) -> Tensor:
        """The same as `inputs`, since texts are not augmented."""
        return self.inputs(indices)

    def labels(self, indices: NDArray[np.int64]) -> Tensor:
        """(B,) class indices."""
        assert self.texts is not None
        return torch.from_numpy(self.texts.labels[indices]).to(self.device)

    def sketches(self, indices: NDArray[np.int64]) -> Tensor:
        """The mean (B, F) of the frozen word embeddings, scaled to a standard deviation of 1."""
        return self.encoder.embedded(self.numbers(indices))


def with_tokens(
    source: TextSource,
    tower: Part,
    clients: Sequence[ClientData],
    storage: Storage,
    store: Path | None,
    report: Report | None = None,
) -> TextSource:
    """A source with the outputs of the frozen layers for all clients' texts computed."""
    texts = source.texts
    assert texts is not None
    facts = (source.tokens.shape[1], hashlib.sha256(source.tokens.tobytes()).hexdigest())
    kept = Kept(texts.name, len(texts.labels), texts.fingerprint, facts)
    prefix = Prefix(tower, source.numbers, source.device)
    return replace(source, kept=tokens_for(prefix, clients, kept, storage, store, report))


def auxiliary_tokens(
    encoder: TextEncoder, config: AuxiliaryConfig, length: int, seed: int
) -> NDArray[np.int64]:
    """Token numbers (n, T) of unlabelled texts: a data set's, or random ones."""
    if config.name == "generated":
        shape = (config.num_images or GENERATED_TEXTS, length)
        vocabulary = int(encoder.config.vocab_size)
        rng = torch_generator(seed, "auxiliary texts")
        drawn = torch.randint(encoder.padding + 1, vocabulary, shape, generator=rng).numpy()
        drawn[:, 0] = encoder.tokenise(["a"], length)[0, 0]
        return drawn
    if config.name != "text":
        raise InputError(
            f"auxiliary.name = {config.name!r} are images: for texts choose `text` and a "
            "source, or `generated`"
        )
    texts = load_texts(config.data_config(32)).texts[: config.num_images]
    return encoder.tokenise(texts, length)


def trimmed(rows: NDArray[np.int64], padding: int) -> NDArray[np.int64]:
    """Token numbers (B, T) without the columns that are padding in all rows."""
    used = np.flatnonzero((rows != padding).any(axis=0))
    return rows[:, : used[-1] + 1]
