"""What serving needs to know of a kind of examples: one object for each, in its folder."""

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
    """An example that a person has named."""

    name: str
    """As the person reads it."""
    content: Any
    """A `Path` to read the bytes from, or the content itself."""


class Labelled(Protocol):
    """Labelled examples that somebody brings along."""

    def labels(self, class_names: Sequence[str]) -> NDArray[np.int64]:
        """(n,) in the numbering of `class_names`; refuses classes that are not among them."""

    def read(self) -> Iterator[Raw]:
        """Read the examples in order."""


@dataclass(frozen=True)
class ExportCard:
    """What the card of an exported model says of its kind."""

    task: str
    """The pipeline tag of model hubs."""
    tags: tuple[str, ...]
    what: str
    """Of what the adapter and the head are."""
    code: str
    """Python that loads the folder with transformers and PEFT alone."""
    example: str
    """What `pfedseq predict` may be given."""


class Kind(Protocol):
    """All that predicting, evaluating, exporting and serving ask of a kind of examples."""

    unit: str
    """What one example is called."""
    generates: bool
    """Whether a model of this kind writes texts; otherwise it names classes."""
    body: Mapping[str, Any]
    """The request's body, as OpenAPI describes it."""

    def asked(self, folder: Path, name: str, about: Mapping[str, Any]) -> Asked:
        """The backbone of that name as the files of a saved model want it."""

    def find(self, named: Sequence[str]) -> list[Found]:
        """The examples that arguments of a command stand for, in order."""

    def labelled(self, path: Path) -> Labelled:
        """The labelled examples of a folder or file."""

    def prepared(
        self, examples: ExampleSet, indices: NDArray[np.int64], personal: PersonalModel
    ) -> Iterator[Example]:
        """Examples of a run's own data as the model takes them."""

    def score(
        self,
        personal: PersonalModel,
        examples: Iterator[Example],
        labels: NDArray[np.int64],
        report: Report,
    ) -> Score:
        """All measures of a model on as many examples as there are labels."""

    def upload(self, content: bytes, content_type: str) -> Upload:
        """What a request's body holds; raises `Refused` for what is no example."""

    def check_exportable(self, personal: PersonalModel) -> None:
        """Refuse a model that transformers and PEFT alone could not load."""

    def complete(self, personal: PersonalModel, folder: Path) -> None:
        """Add to an exported folder what its card's code reads beyond PEFT's files."""

    def is_published(self, encoder: Encoder) -> bool:
        """Whether transformers alone loads these very weights from the hub by their name."""

    def write_backbone(self, encoder: Encoder, folder: Path) -> None:
        """The backbone as transformers reads it, whole or not at all."""

    def same_backbone(self, encoder: Encoder, folder: Path) -> bool:
        """Whether a folder that `write_backbone` made holds this backbone."""

    def check_onnx(self) -> None:
        """Refuse what has no ONNX export."""

    def write_merged(self, personal: PersonalModel, folder: Path) -> None:
        """A whole checkpoint with the adapter in its weights."""

    def card(
        self, personal: PersonalModel, backbone: str, class_names: str, folder: str
    ) -> ExportCard:
        """For an export; `backbone`, `class_names` and `folder` are Python expressions."""
