"""A client's personal model: adapter and head on a backbone, with everything for predictions.

It is saved as a standard PEFT folder with small additional files: those that transformers needs to
read an example, and `personal_model.json` with the class names and the location of the backbone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from pfedseq.config import Config
from pfedseq.errors import InputError
from pfedseq.files import read_object, write_atomically
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.encoders.encoder import Encoder
from pfedseq.model.peft_folder import (
    PeftFolder,
    params_of,
    read_base,
    read_peft_folder,
    write_peft_folder,
)
from pfedseq.params import Params

ABOUT_FILE = "personal_model.json"
FORMAT = 1
PREDICTION_BATCH = 64

Raw = tuple[str, Any]
"""An example's name, for messages, and its content: a file's bytes, pixels or a text."""
Example = NDArray[Any]
"""One example as returned by a reader: pixels (3, S, S) or token numbers (T,)."""


class Reader(Protocol):
    """Converts raw examples to the backbone's input, in use as in training."""

    unit: ClassVar[str]
    """The word for one example: `image`, `text` or `dialogue`."""

    def read(self, raw: Raw) -> Example:
        """Read one example; refuses invalid content."""

    def inputs(self, examples: Sequence[Example], device: torch.device) -> Tensor:
        """The backbone's input (B, …) for several examples."""

    def save(self, folder: Path) -> None:
        """Write the files that transformers needs to read an example."""

    def about(self) -> dict[str, Any]:
        """The entries of `personal_model.json` from which the reader can be rebuilt."""

    def backbone(self, base: str | None) -> dict[str, Any]:
        """The backbone's entries in `personal_model.json`; `base` is its published location."""


class Asked(Protocol):
    """The backbone that a saved model names, and the reader for its examples."""

    def fits(self, encoder: Encoder) -> bool:
        """Whether a loaded backbone is the requested one."""

    def load(self) -> Encoder:
        """Load the backbone."""

    def completed(self, config: Config) -> Asked:
        """A copy with the config's options where the folder has none."""

    def options(self, encoder: Encoder) -> dict[str, dict[str, Any]]:
        """The config sections that select this backbone; options that are None are unset."""

    def reader(self, encoder: Encoder) -> Reader:
        """The reader that the model was saved with."""


@dataclass(frozen=True)
class PersonalModel:
    """φ on a shared backbone, so that N models cost one backbone and N small vectors."""

    model: AdaptedModel
    phi: Params
    class_names: tuple[str, ...]
    reader: Reader
    about: Mapping[str, Any] = field(default_factory=dict)
    """The model's origin, if known: `client`, `method`, `num_train` and others."""

    def save(self, folder: Path, base: str | None = None) -> None:
        """Write the folder; `base` is the backbone's published location, by default its name."""
        write_peft_folder(folder, self.model, self.phi, base or self.model.encoder.name)
        self.reader.save(folder)
        described = {
            **self.about,
            "backbone": self.reader.backbone(base),
            "class_names": list(self.class_names),
            **self.reader.about(),
        }
        text = json.dumps({"format": FORMAT, **described}, indent=2, ensure_ascii=False)
        write_atomically(folder / ABOUT_FILE, text + "\n")

    @classmethod
    def load(cls, folder: Path, shared: AdaptedModel | None = None) -> PersonalModel:
        """Load a folder, reusing the backbone of the `shared` model if it fits.

        Also loads PEFT folders of other programs, if they have a head and a known backbone.
        """
        try:
            return cls._load(folder, shared)
        except InputError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RuntimeError) as e:
            # The JSON files come from anywhere and may have any content.
            raise InputError(f"{folder} is not readable as a saved model ({e})") from None

    @classmethod
    def _load(cls, folder: Path, shared: AdaptedModel | None) -> PersonalModel:
        from pfedseq.workloads import asked_backbone  # its kinds build on this module

        about = read_about(folder)
        asked = asked_backbone(folder, read_base(folder), about)
        if shared is not None and asked.fits(shared.encoder):
            encoder = shared.encoder
        else:
            encoder, shared = asked.load(), None
        read = read_peft_folder(folder, encoder.places)
        class_names = _class_names(folder, read, about.pop("class_names", None), encoder)
        if shared is None or not _same(shared, read.adapter, len(class_names)):
            shared = AdaptedModel(encoder, read.adapter, len(class_names), seed=0)
        phi, reader = params_of(read, shared, folder), asked.reader(shared.encoder)
        own = {"format", "backbone", *reader.about()}
        about = {key: value for key, value in about.items() if key not in own}
        return cls(shared, phi, class_names, reader, about)

    def read(self, raw: Raw) -> Example:
        """Read one example for the model; refuses invalid content."""
        return self.reader.read(raw)

    def inputs(self, examples: Sequence[Example]) -> Tensor:
        """The backbone's input (B, …) for the results of `read`."""
        return self.reader.inputs(examples, self.model.device)

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """(B, C), the same as in the run's evaluation."""
        features = self.model.merged(self.phi.adapter)(self.model.inputs(inputs))
        return self.model.classify(self.phi.head, features)

    def predict(self, examples: Sequence[Example]) -> Tensor:
        """Class probabilities (B, C), in the order of `class_names`, for the results of `read`.

        Images may also be floats (3, S, S) from 0 (black) to 1.
        """
        parts = [
            self.logits(self.inputs(examples[start : start + PREDICTION_BATCH])).softmax(1)
            for start in range(0, len(examples), PREDICTION_BATCH)
        ]
        return torch.cat(parts) if parts else torch.empty(0, len(self.class_names))


def read_about(folder: Path) -> dict[str, Any]:
    """The content of a folder's `personal_model.json`; {} for folders of other programs."""
    return read_object(folder / ABOUT_FILE) or {}


def _class_names(
    folder: Path, read: PeftFolder, named: Sequence[Any] | None, encoder: Encoder
) -> tuple[str, ...]:
    """The folder's class names, or numbers; refuses a missing head or one of another size."""
    if not encoder.tunes_head:
        return ()
    if read.head is None:
        raise InputError(f"{folder} has no head, without which an adapter cannot predict classes")
    weight, bias = read.head
    class_names = tuple(map(str, range(len(weight)) if named is None else named))
    if not len(weight) == len(bias) == len(class_names):
        raise InputError(
            f"{folder} has {len(class_names)} class names for a head of {len(weight)} classes"
        )
    return class_names


def _same(model: AdaptedModel, adapter: AdapterConfig, num_classes: int) -> bool:
    """Whether a loaded model has this adapter config and this number of classes."""
    config, depth = model.adapter_config, model.depth
    return (
        model.num_classes == num_classes
        and (config.kind, {*config.targets}) == (adapter.kind, {*adapter.targets})
        and config.layers_of(depth) == adapter.layers_of(depth)
        and (adapter.kind == "ia3" or (config.rank, config.alpha) == (adapter.rank, adapter.alpha))
    )
