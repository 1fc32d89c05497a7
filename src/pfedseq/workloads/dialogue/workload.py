"""Dialogues: a causal language model, token numbers, and no head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from pfedseq.config import Config
from pfedseq.data.config import DataConfig
from pfedseq.data.dataset import DialogueSet, ExampleSet, FederatedData
from pfedseq.data.image_store import Report
from pfedseq.errors import InputError
from pfedseq.measures import TokenPredictions
from pfedseq.methods import find_method
from pfedseq.model.auxiliary import AuxiliaryExamples
from pfedseq.model.language_model import LanguageModel, check_reads_dialogues, load_language_model
from pfedseq.model.task import Examples
from pfedseq.words import count
from pfedseq.workloads.dialogue.kind import DialogueKind
from pfedseq.workloads.dialogue.reader import DialogueReader
from pfedseq.workloads.dialogue.source import DialogueSource, with_tokens
from pfedseq.workloads.kinds import Kind
from pfedseq.workloads.workload import Copy, Workload


@dataclass(frozen=True)
class DialogueWorkload(Workload):
    """A frozen language model, and prompts with answers."""

    kind: ClassVar[Kind] = DialogueKind()
    own_data: ClassVar[str] = "dialogue"
    predictions: ClassVar[type] = TokenPredictions

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuse backbones, methods, losses and partitions that need classes or images."""
        check_reads_dialogues(config.model.backbone)
        cls.check_headline(config)
        for name in config.run.methods:
            if find_method(name).needs_head:
                raise InputError(
                    f"{name} needs classes and a head, which a language model does not have: "
                    "remove it from run.methods"
                )
        if config.training.looks_at_labels:
            raise InputError(
                "training.class_weights and loss = 'balanced_softmax' need classes: remove them "
                "for dialogues"
            )
        if config.training.augment:
            raise InputError("training.augment only applies to images: remove it for dialogues")
        if config.data.partition in ("dirichlet", "pathological"):
            raise InputError(
                f"data.partition = {config.data.partition!r} divides by classes, which dialogues "
                "do not have: choose 'owners' or 'iid'"
            )

    @classmethod
    def agreed(cls, data: DataConfig) -> dict[str, Any]:
        """The maximum length of dialogues, which all sites share."""
        return {"max_tokens": data.max_tokens}

    @classmethod
    def load_encoder(cls, config: Config) -> LanguageModel:
        """The model with its tokenizer."""
        return load_language_model(config.model.backbone)

    @property
    def encoder(self) -> LanguageModel:
        """The frozen model."""
        encoder = self.model.encoder
        assert isinstance(encoder, LanguageModel)
        return encoder

    def examples(self, data: FederatedData, report: Report | None = None) -> DialogueSource:
        """Token numbers, or the outputs of the frozen layers, computed if missing."""
        dialogues, length = data.examples, self.config.data.max_tokens
        if not isinstance(dialogues, DialogueSet):
            raise InputError(f"{dialogues.name} has {dialogues.unit}s, but dialogues are expected")
        source = DialogueSource.of(dialogues.dialogues, self.encoder, length, self.model.device)
        if self.model.prefix is None:
            return source
        section, store = self.config.model, self.config.data.store
        return with_tokens(
            source, dialogues, self.model.prefix, data.clients, section.tokens, store, report
        )

    def notes_of(self, examples: Examples) -> tuple[str, ...]:
        """A note on the number of truncated dialogues."""
        assert isinstance(examples, DialogueSource)
        if not examples.cut:
            return ()
        are = "is" if examples.cut == 1 else "are"
        return (
            f"{count(examples.cut, 'dialogue')} {are} longer than data.max_tokens = "
            f"{self.config.data.max_tokens}: the beginning of the prompt is left out",
        )

    def copy(self, data: FederatedData, examples: Examples, device: torch.device) -> Copy:
        """The model on another device; stored outputs are shared by all devices."""
        assert isinstance(examples, DialogueSource)
        there = replace(self, model=self.model.on(device))
        if self.model.prefix is not None and self.config.model.tokens == "none":
            return Copy(there.model, there.examples(data))
        return Copy(there.model, replace(examples, device=device))

    def auxiliary(self, threads: int = 1) -> AuxiliaryExamples:
        """Refuse: distillation needs class probabilities."""
        raise InputError(
            "methods that distil need classes, which dialogues do not have: remove them"
        )

    def reader(self, examples: ExampleSet) -> DialogueReader:
        """A reader that truncates as in training; it continues texts if all were plain."""
        assert isinstance(examples, DialogueSet)
        plain = not any(dialogue.turns for dialogue in examples.dialogues)
        return DialogueReader(self.encoder, self.config.data.max_tokens, plain)
