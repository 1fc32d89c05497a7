"""A client's personal model: one adapter and head on a backbone, with all that a prediction needs.

Saved, it is a standard PEFT folder with small files beside it: what transformers needs to read an
example, and `personal_model.json` with the classes' names and where the backbone is.
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
"""What an example is called, for messages, and its content: a file's bytes, pixels, a text."""
Example = NDArray[Any]
"""One example as a reader gives it: pixels (3, S, S), token numbers (T,)."""


class Reader(Protocol):
    """How a raw example becomes what the backbone takes: the same in training and in use."""

    unit: ClassVar[str]
    """What one example is called: `image`, `text`, `dialogue`."""

    def read(self, raw: Raw) -> Example:
        """One example; refuses what is none."""

    def inputs(self, examples: Sequence[Example], device: torch.device) -> Tensor:
        """Several of them as the backbone takes them (B, …)."""

    def save(self, folder: Path) -> None:
        """Write the files that transformers needs to read an example."""

    def about(self) -> dict[str, Any]:
        """What `personal_model.json` must remember to build the reader again."""

    def backbone(self, base: str | None) -> dict[str, Any]:
        """What `personal_model.json` says of the backbone, which others find at `base`."""


class Asked(Protocol):
    """The backbone that a saved model names, and how examples are read for it."""

    def fits(self, encoder: Encoder) -> bool:
        """Whether a loaded backbone is the one that is meant."""

    def load(self) -> Encoder:
        """Load the backbone."""

    def completed(self, config: Config) -> Asked:
        """The same with the config's options where the folder says nothing."""

    def options(self, encoder: Encoder) -> dict[str, dict[str, Any]]:
        """The sections of a config that ask for this backbone; an option that is None is unset."""

    def reader(self, encoder: Encoder) -> Reader:
        """The reader that the model was saved with."""


@dataclass(frozen=True)
class PersonalModel:
    """φ on a shared backbone; many of them cost one backbone and N small vectors."""

    model: AdaptedModel
    phi: Params
    class_names: tuple[str, ...]
    reader: Reader
    about: Mapping[str, Any] = field(default_factory=dict)
    """Whose it is: `client`, `method`, `num_train` and the like, where that is known."""

    def save(self, folder: Path, base: str | None = None) -> None:
        """Write the folder; `base` is what others find the backbone by, if not by its name."""
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
        """Read a folder back, on the `shared` model where it fits: the backbone is loaded once.

        Also reads other people's PEFT folders that have a head, if their backbone is found.
        """
        try:
            return cls._load(folder, shared)
        except InputError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RuntimeError) as e:
            # Whoever wrote the JSON files may have put anything into any place of them.
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
        """One example as the model takes it; refuses what is none."""
        return self.reader.read(raw)

    def inputs(self, examples: Sequence[Example]) -> Tensor:
        """What `read` gave as the backbone takes it (B, …)."""
        return self.reader.inputs(examples, self.model.device)

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """(B, C): what the run's own evaluation computes."""
        features = self.model.merged(self.phi.adapter)(self.model.inputs(inputs))
        return self.model.classify(self.phi.head, features)

    def predict(self, examples: Sequence[Example]) -> Tensor:
        """Each class's probability (B, C), in the order of `class_names`, of what `read` gave.

        Images may also be floats (3, S, S) from 0 (black) to 1.
        """
        parts = [
            self.logits(self.inputs(examples[start : start + PREDICTION_BATCH])).softmax(1)
            for start in range(0, len(examples), PREDICTION_BATCH)
        ]
        return torch.cat(parts) if parts else torch.empty(0, len(self.class_names))


def read_about(folder: Path) -> dict[str, Any]:
    """What a folder says of itself beyond PEFT's files; nothing where others made it."""
    return read_object(folder / ABOUT_FILE) or {}


def _class_names(
    folder: Path, read: PeftFolder, named: Sequence[Any] | None, encoder: Encoder
) -> tuple[str, ...]:
    """As a folder names them, else numbers; refuses a head of another size, or none."""
    if not encoder.tunes_head:
        return ()
    if read.head is None:
        raise InputError(f"{folder} has no head: an adapter alone predicts no class")
    weight, bias = read.head
    class_names = tuple(map(str, range(len(weight)) if named is None else named))
    if not len(weight) == len(bias) == len(class_names):
        raise InputError(
            f"{folder} has {len(class_names)} class names for a head of {len(weight)} classes"
        )
    return class_names


def _same(model: AdaptedModel, adapter: AdapterConfig, num_classes: int) -> bool:
    """Whether a loaded model carries an adapter of that kind and as many classes."""
    config, depth = model.adapter_config, model.depth
    return (
        model.num_classes == num_classes
        and (config.kind, {*config.targets}) == (adapter.kind, {*adapter.targets})
        and config.layers_of(depth) == adapter.layers_of(depth)
        and (adapter.kind == "ia3" or (config.rank, config.alpha) == (adapter.rank, adapter.alpha))
    )
