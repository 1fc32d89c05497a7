"""Reads image files as a backbone's input, and finds the backbone of a saved model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfedseq.config import Config
from pfedseq.data.decode import Window, decode
from pfedseq.data.framing import WHOLE, Framing
from pfedseq.errors import InputError
from pfedseq.files import read_object, write_atomically
from pfedseq.model.backbone import Backbone, load_backbone
from pfedseq.model.encoders.encoder import Encoder
from pfedseq.model.processor import (
    PROCESSOR_FILE,
    processor_framing,
    processor_settings,
    processor_side,
)
from pfedseq.workloads.images.pixels import normalise
from pfedseq.workloads.personal import Raw

Pixels = NDArray[np.uint8] | NDArray[np.floating[Any]]
LARGEST_SIDE = 4096


@dataclass(frozen=True)
class ImageReader:
    """Decodes, resizes and normalises images for a backbone; implements `personal.Reader`."""

    unit: ClassVar[str] = "image"
    encoder: Backbone
    window: Window | None = None
    """The values mapped to black and white in grey images of more than 8 bits."""

    def read(self, raw: Raw) -> NDArray[np.uint8]:
        """A file, or pixels of any size, as (3, S, S); refuses what is not an image."""
        return decode(raw, self.encoder.image_size, self.window, self.encoder.framing).pixels

    def inputs(self, examples: Sequence[Pixels], device: torch.device) -> Tensor:
        """(B, 3, S, S), normalised, of images (3, S, S) of uint8 or floats from 0 (black) to 1."""
        raw = torch.from_numpy(in_bytes_range(examples, self.encoder.image_size)).to(device)
        return normalise(raw, self.encoder.mean, self.encoder.std)

    def save(self, folder: Path) -> None:
        """Write the preprocessing options for transformers' image processors."""
        write_processor(folder, self.encoder)

    def about(self) -> dict[str, Any]:
        """The intensity window, for `personal_model.json`."""
        return {"window": self.window}

    def backbone(self, base: str | None) -> dict[str, Any]:
        """The backbone's name, and its number of heads if its file does not reveal it."""
        backbone = self.encoder
        return {"name": base or backbone.name, "num_heads": None if base else backbone.num_heads}


def in_bytes_range(images: Sequence[Pixels], side: int) -> Pixels:
    """Images (3, S, S) of uint8 or of floats in [0, 1] as one array (B, 3, S, S) from 0 to 255."""
    try:
        stacked = np.stack([np.asarray(image) for image in images])
    except ValueError:
        raise InputError("the images are not all of one size: give (3, S, S) each") from None
    if stacked.shape[1:] != (3, side, side):
        raise InputError(
            f"images of shape {stacked.shape[1:]} were given where (3, {side}, {side}) is needed: "
            "use `read` to convert a file, or pixels of any size"
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


def write_processor(folder: Path, backbone: Backbone) -> None:
    """How images become inputs, as transformers' image processors read it."""
    settings = processor_settings(
        backbone.image_size, backbone.mean, backbone.std, backbone.framing
    )
    write_atomically(folder / PROCESSOR_FILE, json.dumps(settings, indent=2) + "\n")


@dataclass(frozen=True)
class AskedBackbone:
    """The backbone that a folder names; options that are None follow the backbone.

    Implements `personal.Asked`.
    """

    name: str
    num_heads: int | None
    image_size: int | None
    mean: Sequence[float] | None
    std: Sequence[float] | None
    window: Window | None = None
    framing: Framing = WHOLE

    def fits(self, encoder: Encoder) -> bool:
        """Whether a loaded backbone is the requested one."""
        return (
            isinstance(encoder, Backbone)
            and encoder.name == self.name
            and encoder.num_heads == self.num_heads
            and self.image_size in (None, encoder.image_size)
            and self.framing == encoder.framing
            and (self.mean is None or tuple(self.mean) == encoder.mean)
            and (self.std is None or tuple(self.std) == encoder.std)
        )

    def load(self) -> Backbone:
        """Load the backbone."""
        return load_backbone(
            self.name,
            self.image_size,
            self.mean,
            self.std,
            num_heads=self.num_heads,
            framing=self.framing,
        )

    def completed(self, config: Config) -> AskedBackbone:
        """With the config's image size, if the folder names none."""
        return replace(self, image_size=self.image_size or config.data.image_size)

    def options(self, encoder: Encoder) -> dict[str, dict[str, Any]]:
        """The options for the backbone, its normalisation and the image size."""
        assert isinstance(encoder, Backbone)
        model = {"backbone": self.name, "mean": encoder.mean, "std": encoder.std}
        return {
            "model": {**model, "num_heads": self.num_heads},
            "data": {"image_size": encoder.image_size} | encoder.framing.differences(),
        }

    def reader(self, encoder: Encoder) -> ImageReader:
        """A reader with the folder's window."""
        assert isinstance(encoder, Backbone)
        return ImageReader(encoder, self.window)


def asked_backbone(folder: Path, name: str, about: Mapping[str, Any]) -> AskedBackbone:
    """The backbone of that name, with the settings in a folder's files."""
    processor, named = read_object(folder / PROCESSOR_FILE) or {}, about.get("backbone", {})
    side, window = processor_side(processor), about.get("window")
    if side is not None and not (isinstance(side, int) and 1 <= side <= LARGEST_SIDE):
        raise InputError(f"{folder / PROCESSOR_FILE} has the invalid image size {side}")
    return AskedBackbone(
        name,
        named.get("num_heads"),
        side,
        processor.get("image_mean"),
        processor.get("image_std"),
        None if window is None else tuple(window),
        processor_framing(name, processor, side) if side else WHOLE,
    )
