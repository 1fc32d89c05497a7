"""Images as serving sees them: files, folders of labelled images, uploads, exports."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pfedseq.data.dataset import ExampleSet, ImageSet
from pfedseq.data.file_tree import FileTree
from pfedseq.data.folder import open_folder
from pfedseq.data.image_store import Report
from pfedseq.data.location import Location
from pfedseq.errors import InputError
from pfedseq.measures import Score
from pfedseq.model.backbone import Backbone, load_backbone
from pfedseq.model.encoders.encoder import Encoder
from pfedseq.words import some
from pfedseq.workloads.headless import write_head
from pfedseq.workloads.images import published
from pfedseq.workloads.images.reader import AskedBackbone, asked_backbone
from pfedseq.workloads.images.uploads import check_image
from pfedseq.workloads.kinds import ExportCard, Found
from pfedseq.workloads.personal import Example, PersonalModel, Raw
from pfedseq.workloads.scoring import score_classes
from pfedseq.workloads.uploads import Refused, Upload


class ImageKind:
    """Implements `kinds.Kind`."""

    unit = "image"
    generates = False
    bodies = ("image/", "application/octet-stream", "application/x-www-form-urlencoded")
    """The last two are defaults for unknown bytes; the last is curl's."""
    body: Mapping[str, Any] = {
        "required": True,
        "description": "The image file itself.",
        "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}},
    }

    def asked(self, folder: Path, name: str, about: Mapping[str, Any]) -> AskedBackbone:
        """The backbone of a saved folder, with the folder's size, normalisation and window."""
        return asked_backbone(folder, name, about)

    def find(self, named: Sequence[str]) -> list[Found]:
        """Images from files, folders and glob patterns."""
        return [Found(str(path), path) for path in find_images(named)]

    def labelled(self, path: Path) -> LabelledImages:
        """The images of a folder or archive with one folder per class."""
        return LabelledImages(path)

    def prepared(
        self, examples: ExampleSet, indices: NDArray[np.int64], personal: PersonalModel
    ) -> Iterator[Example]:
        """The pixels of a run's prepared images."""
        assert isinstance(examples, ImageSet)
        return iter(examples.images[indices])

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
        """The uploaded file, after checking its size and format but before decoding."""
        if content_type and not content_type.startswith(self.bodies):
            raise Refused(
                415, f"send the image's bytes as the body with the type image/…, not {content_type}"
            )
        return Upload(content, check_image(content))

    def check_exportable(self, personal: PersonalModel) -> None:
        """Refuse a ViT with registers."""
        published.refuse_registers(_backbone(personal.model.encoder))

    def complete(self, personal: PersonalModel, folder: Path) -> None:
        """Write the head, if PEFT's files cannot contain it because there is no classifier."""
        if not personal.model.encoder.has_classifier:
            write_head(personal, folder)

    def is_published(self, encoder: Encoder) -> bool:
        """Whether the hub has exactly these weights."""
        return _backbone(encoder).as_published

    def write_backbone(self, encoder: Encoder, folder: Path) -> None:
        """Write the backbone with its image processor."""
        published.write_backbone(_backbone(encoder), folder)

    def same_backbone(self, encoder: Encoder, folder: Path) -> bool:
        """Whether two backbones have the same weights and number of heads."""
        one, other = _backbone(encoder).model, load_backbone(str(folder)).model
        mine, theirs = one.state_dict(), other.state_dict()
        return (
            mine.keys() == theirs.keys()
            and one.config.num_attention_heads == other.config.num_attention_heads
            and all(torch.equal(mine[name].cpu(), theirs[name]) for name in mine)
        )

    def check_onnx(self) -> None:
        """Accept every image model."""

    def write_merged(self, personal: PersonalModel, folder: Path) -> None:
        """Write a `ViTForImageClassification`, or an encoder with the head beside it."""
        published.write_merged(personal, folder)

    def card(
        self, personal: PersonalModel, backbone: str, class_names: str, folder: str
    ) -> ExportCard:
        """The card of an image encoder of any family."""
        family = _backbone(personal.model.encoder).family
        code = published.usage(personal, backbone, class_names, folder)
        what = "a frozen Vision Transformer"
        if family.name != "vit":
            what += f" ({family.title})"
        return ExportCard("image-classification", (family.name,), what, code, "photo.png")


class LabelledImages:
    """Images in a folder with one folder per class, decoded on demand."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise InputError(f"there is no file or folder {path}: check --data")
        advice = "--data must be a folder with one folder for each class"
        self.path, self.source = path, open_folder(Location(path.resolve(), None), "class", advice)

    def labels(self, class_names: Sequence[str]) -> NDArray[np.int64]:
        """(n,) indices into `class_names`; refuses other classes."""
        known = {name: number for number, name in enumerate(class_names)}
        if unknown := [name for name in self.source.class_names if name not in known]:
            raise InputError(
                f"{self.path} has folders of classes that the model does not know "
                f"({some(unknown)}); it knows {some(list(class_names))}"
            )
        numbers = np.array([known[name] for name in self.source.class_names], dtype=np.int64)
        return numbers[self.source.labels]

    def read(self) -> Iterator[Raw]:
        """Read the images in order."""
        for block in self.source.blocks:
            yield from block.read()


def find_images(named: Sequence[str]) -> list[Path]:
    """The image files that arguments refer to, in order; of a folder, all images at any depth."""
    found: list[Path] = []
    for argument in named:
        path = Path(argument).expanduser()
        if path.is_dir():
            inside = [path / name for name in FileTree(path).images()]
            if not inside:
                raise InputError(f"{path} contains no images")
        elif path.exists():
            inside = [path]
        else:
            inside = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
            inside = [match for match in inside if match.is_file()]
            if not inside:
                raise InputError(f"there is no image {argument}")
        found += inside
    return found


def _backbone(encoder: Encoder) -> Backbone:
    assert isinstance(encoder, Backbone)
    return encoder
