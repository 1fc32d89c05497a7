"""The interface of a kind of examples to serving; each kind's folder implements it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pfedseq.data.dataset import ExampleSet
from pfedseq.data.image_store import Report
from pfedseq.measures import Score
from pfedseq.model.encoders.encoder import Encoder
from pfedseq.workloads.personal import Asked, Example, PersonalModel, Raw
from pfedseq.workloads.uploads import Upload


class Found(NamedTuple):
    """An example that the user has named."""

    name: str
    """The name shown to the user."""
    content: Any
    """A `Path` to read, or the content itself."""


class Labelled(Protocol):
    """The user's labelled examples."""

    def labels(self, class_names: Sequence[str]) -> NDArray[np.int64]:
        """(n,) indices into `class_names`; refuses other classes."""

    def read(self) -> Iterator[Raw]:
        """Read the examples in order."""


@dataclass(frozen=True)
class ExportCard:
    """The parts of an exported model's card that depend on the kind of examples."""

    task: str
    """The pipeline tag of model hubs."""
    tags: tuple[str, ...]
    what: str
    """The model that the adapter and the head belong to."""
    code: str
    """Python code that loads the folder with only transformers and PEFT."""
    example: str
    """An example argument of `pfedseq predict`."""


class Kind(Protocol):
    """The operations on a kind of examples for prediction, evaluation, export and serving."""

    unit: str
    """The word for one example."""
    generates: bool
    """Whether a model of this kind generates texts instead of predicting classes."""
    body: Mapping[str, Any]
    """The request's body, as OpenAPI describes it."""

    def asked(self, folder: Path, name: str, about: Mapping[str, Any]) -> Asked:
        """The backbone of that name, with the settings in a saved model's files."""

    def find(self, named: Sequence[str]) -> list[Found]:
        """The examples that a command's arguments refer to, in order."""

    def labelled(self, path: Path) -> Labelled:
        """The labelled examples of a folder or file."""

    def prepared(
        self, examples: ExampleSet, indices: NDArray[np.int64], personal: PersonalModel
    ) -> Iterator[Example]:
        """Examples of a run's data, in the form that the model reads."""

    def score(
        self,
        personal: PersonalModel,
        examples: Iterator[Example],
        labels: NDArray[np.int64],
        report: Report,
    ) -> Score:
        """All measures of a model on as many examples as there are labels."""

    def upload(self, content: bytes, content_type: str) -> Upload:
        """The example in a request's body; raises `Refused` for anything else."""

    def check_exportable(self, personal: PersonalModel) -> None:
        """Refuse a model that needs more than transformers and PEFT."""

    def complete(self, personal: PersonalModel, folder: Path) -> None:
        """Add the files beyond PEFT's that the code on an exported folder's card reads."""

    def is_published(self, encoder: Encoder) -> bool:
        """Whether transformers loads exactly these weights from the hub by name."""

    def write_backbone(self, encoder: Encoder, folder: Path) -> None:
        """Write the backbone in transformers' format, atomically."""

    def same_backbone(self, encoder: Encoder, folder: Path) -> bool:
        """Whether a folder written by `write_backbone` contains this backbone."""

    def check_onnx(self) -> None:
        """Refuse kinds without ONNX export."""

    def write_merged(self, personal: PersonalModel, folder: Path) -> None:
        """Write a complete checkpoint with the adapter merged into its weights."""

    def card(
        self, personal: PersonalModel, backbone: str, class_names: str, folder: str
    ) -> ExportCard:
        """The card of an export; `backbone`, `class_names` and `folder` are Python expressions."""
