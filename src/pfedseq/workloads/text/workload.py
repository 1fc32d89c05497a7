"""Texts: a text encoder, token numbers, and auxiliary texts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfedseq.config import Config
from pfedseq.data.config import DataConfig
from pfedseq.data.dataset import ExampleSet, FederatedData, TextSet
from pfedseq.data.image_store import Report
from pfedseq.errors import InputError
from pfedseq.model.auxiliary import AuxiliaryExamples
from pfedseq.model.task import Examples
from pfedseq.model.text_encoder import TextEncoder, check_reads_texts, load_text_encoder
from pfedseq.workloads.kinds import Kind
from pfedseq.workloads.text.kind import TextKind
from pfedseq.workloads.text.reader import TextReader
from pfedseq.workloads.text.source import TextSource, auxiliary_tokens, with_tokens
from pfedseq.workloads.workload import Copy, Workload


@dataclass(frozen=True)
class TextWorkload(Workload):
    """A frozen text encoder and labelled texts."""

    kind: ClassVar[Kind] = TextKind()
    own_data: ClassVar[str] = "text"

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuse a backbone known to read images, and options that only apply to images."""
        cls.check_headline(config)
        check_reads_texts(config.model.backbone)
        if config.training.augment:
            raise InputError("training.augment only applies to images: remove it for texts")

    @classmethod
    def agreed(cls, data: DataConfig) -> dict[str, Any]:
        """The maximum length of texts, which all sites share."""
        return {"max_tokens": data.max_tokens}

    @classmethod
    def load_encoder(cls, config: Config) -> TextEncoder:
        """The encoder with its tokenizer."""
        return load_text_encoder(config.model.backbone, config.model.pooling)

    @property
    def encoder(self) -> TextEncoder:
        """The frozen encoder."""
        encoder = self.model.encoder
        assert isinstance(encoder, TextEncoder)
        return encoder

    @property
    def sketch_shape(self) -> tuple[int, ...]:
        """The length of a word embedding."""
        return (self.encoder.embedding_dim,)

    def facts(self) -> dict[str, Any]:
        """The pooling, which must match a checkpoint's."""
        return {"pooling": self.encoder.pooling}

    def examples(self, data: FederatedData, report: Report | None = None) -> TextSource:
        """Token numbers, or the outputs of the frozen layers, computed if missing."""
        texts, length = data.examples, self.config.data.max_tokens
        if not isinstance(texts, TextSet):
            raise InputError(f"{texts.name} has {texts.unit}s, but texts are expected")
        source = TextSource.of(texts, self.encoder, length, self.model.device)
        if self.model.prefix is None:
            return source
        section, store = self.config.model, self.config.data.store
        return with_tokens(source, self.model.prefix, data.clients, section.tokens, store, report)

    def copy(self, data: FederatedData, examples: Examples, device: torch.device) -> Copy:
        """The model on another device; stored outputs are shared by all devices."""
        assert isinstance(examples, TextSource)
        there = replace(self, model=self.model.on(device))
        if self.model.prefix is not None and self.config.model.tokens == "none":
            return Copy(there.model, there.examples(data))
        return Copy(there.model, replace(examples, device=device))

    def auxiliary(self, threads: int = 1) -> AuxiliaryExamples:
        """The auxiliary texts: a data set's, or random tokens."""
        seed, length = self.config.run.seed, self.config.data.max_tokens
        tokens = auxiliary_tokens(self.encoder, self.config.auxiliary, length, seed)
        source = TextSource(None, tokens, self.encoder, self.model.device)

        def read(indices: NDArray[np.int64]) -> Tensor:
            return self.model.inputs(source.inputs(indices))

        return AuxiliaryExamples(self.model, read, len(tokens), seed, threads)

    def reader(self, examples: ExampleSet) -> TextReader:
        """A reader that truncates texts as in training."""
        return TextReader(self.encoder, self.config.data.max_tokens)
