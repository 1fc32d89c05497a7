"""A client's personal model: one adapter and head on a backbone, with all that a prediction needs.

Saved, it is a standard PEFT folder with two small files beside: `preprocessor_config.json`, which
transformers reads, and `personal_model.json` with the classes' names and where the backbone is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfedseq.data.decode import Window, decode
from pfedseq.data.source import RawImage
from pfedseq.errors import InputError
from pfedseq.files import read_object, write_atomically
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.backbone import Backbone, load_backbone
from pfedseq.model.peft_folder import (
    PeftFolder,
    params_of,
    read_peft_folder,
    write_peft_folder,
)
from pfedseq.params import Params
from pfedseq.workloads.images.pixels import normalise

ABOUT_FILE, PROCESSOR_FILE = "personal_model.json", "preprocessor_config.json"
FORMAT = 1
PREDICTION_BATCH = 64
LARGEST_SIDE = 4096
Pixels = NDArray[np.uint8] | NDArray[np.floating[Any]]
BICUBIC = 3
"""Pillow's number for it, as preprocessor_config.json wants it."""


@dataclass(frozen=True)
class PersonalModel:
    """φ on a shared backbone; many of them cost one backbone and N small vectors."""

    model: AdaptedModel
    phi: Params
    class_names: tuple[str, ...]
    window: Window | None = None
    """What becomes black and white in grey images of more than 8 bits."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Whose it is: `client`, `method`, `num_train` and the like, where that is known."""

    def save(self, folder: Path, base: str | None = None) -> None:
        """Write the folder; `base` is what others find the backbone by, if not by its name."""
        backbone = self.model.backbone
        write_peft_folder(folder, self.model, self.phi, base or backbone.name)
        write_processor(folder, backbone)
        about = {
            **self.about,
            "backbone": {
                "name": base or backbone.name,
                "num_heads": None if base else backbone.num_heads,
            },
            "class_names": list(self.class_names),
            "window": self.window,
        }
        write_about(folder, about)

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
        read, about = read_peft_folder(folder), read_about(folder)
        if read.head is None:
            raise InputError(f"{folder} has no head: an adapter alone predicts no class")
        weight, bias = read.head
        class_names = tuple(map(str, about.pop("class_names", range(len(weight)))))
        if not len(weight) == len(bias) == len(class_names):
            raise InputError(
                f"{folder} has {len(class_names)} class names for a head of {len(weight)} classes"
            )
        backbone = asked_backbone(folder, read, about)
        if shared is None or not _fits(shared, backbone, read.adapter, len(weight)):
            loaded = load_backbone(
                backbone.name,
                backbone.image_size,
                backbone.mean,
                backbone.std,
                num_heads=backbone.num_heads,
            )
            shared = AdaptedModel(loaded, read.adapter, len(weight), seed=0)
        phi = params_of(read, shared, folder)
        window = about.pop("window", None)
        about = {key: value for key, value in about.items() if key not in ("format", "backbone")}
        return cls(shared, phi, class_names, None if window is None else tuple(window), about)

    def read(self, image: RawImage) -> NDArray[np.uint8]:
        """A file, or pixels of any size, as (3, S, S); refuses what is not an image."""
        return decode(image, self.model.backbone.image_size, self.window).pixels

    def inputs(self, images: Sequence[Pixels]) -> Tensor:
        """Images (3, S, S) as the backbone takes them (B, 3, S, S), as `predict` says."""
        backbone = self.model.backbone
        raw = torch.from_numpy(in_bytes_range(images, backbone.image_size)).to(self.model.device)
        return normalise(raw, backbone.mean, backbone.std)

    @torch.no_grad()
    def logits(self, pixels: Tensor) -> Tensor:
        """(B, C): what the run's own evaluation computes."""
        features = self.model.merged(self.phi.adapter)(self.model.inputs(pixels))
        return self.model.classify(self.phi.head, features)

    def predict(self, images: Sequence[Pixels]) -> Tensor:
        """Each class's probability (B, C), in the order of `class_names`.

        Images are (3, S, S) each, as `read` gives them: uint8, or floats from 0 (black) to 1.
        """
        parts = [
            self.logits(self.inputs(images[start : start + PREDICTION_BATCH])).softmax(1)
            for start in range(0, len(images), PREDICTION_BATCH)
        ]
        return torch.cat(parts) if parts else torch.empty(0, len(self.class_names))


def in_bytes_range(images: Sequence[Pixels], side: int) -> Pixels:
    """Images (3, S, S) of uint8 or of floats in [0, 1] as one array (B, 3, S, S) from 0 to 255."""
    try:
        stacked = np.stack([np.asarray(image) for image in images])
    except ValueError:
        raise InputError("the images are not all of one size: give (3, S, S) each") from None
    if stacked.shape[1:] != (3, side, side):
        raise InputError(
            f"images of shape {stacked.shape[1:]} were given where (3, {side}, {side}) is needed: "
            "`read` makes that of a file or of pixels of any size"
        )
    if stacked.dtype == np.uint8:
        return stacked
    if stacked.dtype.kind != "f":
        raise InputError(f"images of {stacked.dtype} were given: give uint8, or floats from 0 to 1")
    if not (stacked.min() >= 0 and stacked.max() <= 1):  # NaN is refused too
        raise InputError(
            f"images of floats from {stacked.min():g} to {stacked.max():g} were given: floats "
            "must lie between 0 and 1, before any normalisation; 0 … 255 is for uint8"
        )
    return stacked.astype(np.float32) * np.float32(255)


def save_personal_model(
    folder: Path,
    model: AdaptedModel,
    phi: Params,
    class_names: tuple[str, ...],
    window: Window | None = None,
    **about: Any,
) -> None:
    """Write what `PersonalModel.load` and PEFT read; `about` says whose it is."""
    PersonalModel(model, phi, class_names, window, about).save(folder)


def write_about(folder: Path, about: Mapping[str, Any]) -> None:
    """What a saved model says of itself beyond PEFT's files."""
    text = json.dumps({"format": FORMAT, **about}, indent=2, ensure_ascii=False)
    write_atomically(folder / ABOUT_FILE, text + "\n")


def read_about(folder: Path) -> dict[str, Any]:
    """What a folder says of itself beyond PEFT's files; nothing where others made it."""
    return read_object(folder / ABOUT_FILE) or {}


def write_processor(folder: Path, backbone: Backbone) -> None:
    """How images become inputs, as transformers' `ViTImageProcessor` reads it."""
    side = backbone.image_size
    settings = {
        "image_processor_type": "ViTImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": side, "width": side},
        "resample": BICUBIC,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(backbone.mean),
        "image_std": list(backbone.std),
    }
    write_atomically(folder / PROCESSOR_FILE, json.dumps(settings, indent=2) + "\n")


@dataclass(frozen=True)
class AskedBackbone:
    """The backbone that a folder names; None is for what the backbone itself says."""

    name: str
    num_heads: int | None
    image_size: int | None
    mean: Sequence[float] | None
    std: Sequence[float] | None


def asked_backbone(
    folder: Path, read: PeftFolder, about: Mapping[str, Any], or_else: str = ""
) -> AskedBackbone:
    """Which backbone a folder is for, or `or_else`; a relative path counts from the folder."""
    processor, named = read_object(folder / PROCESSOR_FILE) or {}, about.get("backbone", {})
    name = named.get("name") or read.base or or_else
    if not name:
        raise InputError(f"{folder} does not say which backbone its adapter is for")
    beside = folder / name
    if beside.is_dir():  # an export's own copy of the backbone, by a relative path
        name = str(beside.resolve())
    size = processor.get("size", {})
    side = size.get("height") if isinstance(size, dict) else size
    if side is not None and not (isinstance(side, int) and 1 <= side <= LARGEST_SIDE):
        raise InputError(f"{folder / PROCESSOR_FILE} asks for images of {side} pixels a side")
    return AskedBackbone(
        name,
        named.get("num_heads"),
        side,
        processor.get("image_mean"),
        processor.get("image_std"),
    )


def _fits(
    model: AdaptedModel, asked: AskedBackbone, adapter: AdapterConfig, num_classes: int
) -> bool:
    backbone, config = model.backbone, model.adapter_config
    depth = model.depth
    return (
        backbone.name == asked.name
        and backbone.num_heads == asked.num_heads
        and asked.image_size in (None, backbone.image_size)
        and (asked.mean is None or tuple(asked.mean) == backbone.mean)
        and (asked.std is None or tuple(asked.std) == backbone.std)
        and model.num_classes == num_classes
        and (config.kind, {*config.targets}) == (adapter.kind, {*adapter.targets})
        and config.layers_of(depth) == adapter.layers_of(depth)
        and (adapter.kind == "ia3" or (config.rank, config.alpha) == (adapter.rank, adapter.alpha))
    )
