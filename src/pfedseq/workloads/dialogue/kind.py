"""Dialogues as serving sees them: prompts, files of dialogues, exports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pfedseq.data.config import DataConfig
from pfedseq.data.dataset import DialogueSet, ExampleSet
from pfedseq.data.dialogue import load_dialogues
from pfedseq.data.image_store import Report
from pfedseq.errors import InputError
from pfedseq.measures import MEASURES, Score
from pfedseq.model.encoders.encoder import Encoder
from pfedseq.model.language_model import LanguageModel
from pfedseq.workloads.dialogue import published
from pfedseq.workloads.dialogue.reader import AskedLanguageModel, asked_backbone
from pfedseq.workloads.dialogue.source import padded, predicted
from pfedseq.workloads.kinds import ExportCard
from pfedseq.workloads.personal import Example, PersonalModel, Raw
from pfedseq.workloads.token_kind import TokenKind
from pfedseq.workloads.uploads import Refused, Upload


class DialogueKind(TokenKind):
    """Implements `kinds.Kind`."""

    unit = "dialogue"
    generates = True
    body: Mapping[str, Any] = {}

    def asked(self, folder: Path, name: str, about: Mapping[str, Any]) -> AskedLanguageModel:
        """The language model of a saved folder, with the folder's maximum length."""
        return asked_backbone(folder, name, about)

    def labelled(self, path: Path) -> AnsweredDialogues:
        """A .jsonl or .txt file, or a folder of them."""
        return AnsweredDialogues(path)

    def prepared(
        self, examples: ExampleSet, indices: NDArray[np.int64], personal: PersonalModel
    ) -> Iterator[Example]:
        """A run's dialogues as tokens, with their answers."""
        assert isinstance(examples, DialogueSet)
        return (personal.read((f"dialogue {i}", examples.dialogues[i])) for i in indices.tolist())

    @torch.no_grad()
    def score(
        self,
        personal: PersonalModel,
        examples: Iterator[Example],
        labels: NDArray[np.int64],
        report: Report,
    ) -> Score:
        """All measures of the answers' tokens."""
        model, total, done = personal.model, len(labels), 0
        features_of = model.merged(personal.phi.adapter)
        features, tokens = [], []
        while some := list(islice(examples, model.readout.pass_size)):
            rows = padded(some)
            inputs = torch.from_numpy(rows[..., :2]).to(model.device)
            features.append(features_of(model.inputs(inputs)))
            tokens.append(torch.from_numpy(predicted(rows)).to(model.device))
            done += len(some)
            report("evaluating", done, total)
        return model.readout.score(
            personal.phi.head, torch.cat(features), torch.cat(tokens), tuple(MEASURES), True
        )

    def upload(self, content: bytes, content_type: str) -> Upload:
        """Refuse: language models are served by dedicated programs such as vLLM."""
        raise Refused(400, "a language model is not served here: export it, e.g. for vLLM")

    def check_exportable(self, personal: PersonalModel) -> None:
        """Accept every language model."""

    def complete(self, personal: PersonalModel, folder: Path) -> None:
        """Do nothing: there is no head."""

    def is_published(self, encoder: Encoder) -> bool:
        """Whether it came from the hub."""
        return not _model(encoder).place.exists()

    def write_merged(self, personal: PersonalModel, folder: Path) -> None:
        """The whole model with the adapter in its weights, and its tokenizer."""
        published.write_merged(personal, folder)

    def card(
        self, personal: PersonalModel, backbone: str, class_names: str, folder: str
    ) -> ExportCard:
        """The card of a language model of any family."""
        family = _model(personal.model.encoder).family
        return ExportCard(
            "text-generation",
            (family.name,),
            f"a frozen language model ({family.title})",
            published.usage(personal, backbone, folder),
            '"a prompt"',
        )


class AnsweredDialogues:
    """Dialogues with answers, from a user's file or folder."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise InputError(f"there is no file or folder {path}: check --data")
        given = {"name": "dialogue", "source": str(path), "partition": "iid", "num_clients": 1}
        self.path, self.found = path, load_dialogues(DataConfig.model_validate(given))

    def labels(self, class_names: Sequence[str]) -> NDArray[np.int64]:
        """(n,) zeros: there are no classes."""
        return self.found.labels

    def read(self) -> Iterator[Raw]:
        """Read the dialogues in order."""
        for number, dialogue in enumerate(self.found.dialogues, 1):
            yield f"dialogue {number} of {self.path}", dialogue


def _model(encoder: Encoder) -> LanguageModel:
    assert isinstance(encoder, LanguageModel)
    return encoder
