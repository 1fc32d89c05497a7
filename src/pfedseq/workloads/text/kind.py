"""Texts as serving sees them: arguments, files, labelled tables, requests, exports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedseq.data.config import DataConfig
from pfedseq.data.dataset import ExampleSet, TextSet
from pfedseq.data.image_store import Report
from pfedseq.data.text import load_texts
from pfedseq.errors import InputError
from pfedseq.measures import Score
from pfedseq.model.encoders.encoder import Encoder
from pfedseq.model.text_encoder import TextEncoder
from pfedseq.words import some
from pfedseq.workloads.headless import write_head
from pfedseq.workloads.kinds import ExportCard
from pfedseq.workloads.personal import Example, PersonalModel, Raw
from pfedseq.workloads.scoring import score_classes
from pfedseq.workloads.text import published
from pfedseq.workloads.text.reader import AskedTextEncoder, asked_backbone
from pfedseq.workloads.token_kind import TokenKind
from pfedseq.workloads.uploads import Refused, Upload


class TextKind(TokenKind):
    """Implements `kinds.Kind`."""

    unit = "text"
    generates = False
    bodies = ("text/", "application/json", "application/x-www-form-urlencoded")
    body: Mapping[str, Any] = {
        "required": True,
        "description": 'The text itself as text/plain, or {"text": "…"} as application/json.',
        "content": {
            "text/plain": {"schema": {"type": "string"}},
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {"text": {"type": "string"}},
                    "required": ["text"],
                }
            },
        },
    }

    def asked(self, folder: Path, name: str, about: Mapping[str, Any]) -> AskedTextEncoder:
        """The encoder of a saved folder, with the folder's length and pooling."""
        return asked_backbone(folder, name, about)

    def labelled(self, path: Path) -> LabelledTexts:
        """A CSV file with the columns `label` and `text`, or folders of .txt files by class."""
        return LabelledTexts(path)

    def prepared(
        self, examples: ExampleSet, indices: NDArray[np.int64], personal: PersonalModel
    ) -> Iterator[Example]:
        """A run's texts as tokens."""
        assert isinstance(examples, TextSet)
        return (personal.read((f"text {i}", examples.texts[i])) for i in indices.tolist())

    def score(
        self,
        personal: PersonalModel,
        examples: Iterator[Example],
        labels: NDArray[np.int64],
        report: Report,
    ) -> Score:
        """All measures of the classes that the model names."""
        return score_classes(personal, examples, labels, report)

    def upload(self, content: bytes, content_type: str) -> Upload:
        """The text in a plain body or a JSON object."""
        if content_type and not content_type.startswith(self.bodies):
            raise Refused(
                415, f"send the text as text/plain, or as application/json, not {content_type}"
            )
        try:
            text = content.decode("utf-8")
            if content_type.startswith("application/json"):
                text = json.loads(text)["text"]
        except (UnicodeDecodeError, ValueError, KeyError, TypeError) as problem:
            raise Refused(400, 'the body must be UTF-8 text or {"text": "…"}') from problem
        if not isinstance(text, str) or not text.strip():
            raise Refused(400, "the request has no text: send it as the body")
        return Upload(text)

    def check_exportable(self, personal: PersonalModel) -> None:
        """Refuse random weights, which have no vocabulary."""
        encoder = _encoder(personal.model.encoder)
        if encoder.tokenizer is None:
            raise InputError(
                f"backbone {encoder.name!r} has random weights and no tokenizer: it is for tests "
                "only and cannot be exported"
            )

    def complete(self, personal: PersonalModel, folder: Path) -> None:
        """Write the head, which PEFT's files cannot contain for a model without one."""
        write_head(personal, folder)

    def is_published(self, encoder: Encoder) -> bool:
        """Whether it came from the hub."""
        return not Path(encoder.name).exists()

    def write_merged(self, personal: PersonalModel, folder: Path) -> None:
        """The encoder with the adapter in its weights, its tokenizer and the head."""
        published.write_merged(personal, folder)

    def card(
        self, personal: PersonalModel, backbone: str, class_names: str, folder: str
    ) -> ExportCard:
        """The card of a text encoder of any family."""
        encoder = _encoder(personal.model.encoder)
        code = published.usage(personal, backbone, class_names, folder)
        title = encoder.family.title
        return ExportCard(
            "text-classification",
            (encoder.family.name,),
            f"a frozen text encoder ({title})",
            code,
            '"a text"',
        )


class LabelledTexts:
    """The user's labelled texts."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise InputError(f"there is no file or folder {path}: check --data")
        given = {"name": "text", "source": str(path), "partition": "iid", "num_clients": 1}
        self.path, self.texts = path, load_texts(DataConfig.model_validate(given))

    def labels(self, class_names: Sequence[str]) -> NDArray[np.int64]:
        """(n,) indices into `class_names`; refuses other classes."""
        known = {name: number for number, name in enumerate(class_names)}
        if unknown := [name for name in self.texts.class_names if name not in known]:
            raise InputError(
                f"{self.path} has classes that the model does not know ({some(unknown)}); it knows "
                f"{some(list(class_names))}"
            )
        numbers = np.array([known[name] for name in self.texts.class_names], dtype=np.int64)
        return numbers[self.texts.labels]

    def read(self) -> Iterator[Raw]:
        """Read the texts in order."""
        for number, text in enumerate(self.texts.texts, 1):
            yield f"text {number} of {self.path}", text


def _encoder(encoder: Encoder) -> TextEncoder:
    assert isinstance(encoder, TextEncoder)
    return encoder
