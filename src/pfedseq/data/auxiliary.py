"""The `[auxiliary]` section: unlabelled images at the server, on which PerAda distils."""

from dataclasses import asdict
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, model_validator

from pfedseq.base_config import BaseConfig
from pfedseq.data.config import DataConfig
from pfedseq.data.dataset import ImageSet
from pfedseq.data.framing import WHOLE, Framing
from pfedseq.data.loading import load_images
from pfedseq.data.synthetic import SyntheticClasses
from pfedseq.errors import InputError
from pfedseq.seeding import derive_seed, numpy_generator, torch_generator

GENERATED_IMAGES = 2000
DRAWN_AT_ONCE = 500
"""Images rendered together; bounds the memory used."""
CIFAR_SIZE = 32
"""CIFAR's pixels per side: images are stored at this size and enlarged batch by batch."""


class AuxiliaryConfig(BaseConfig):
    """Images that belong to no client; only methods that distil read them."""

    name: str = Field(
        "generated",
        description="`generated` draws glyphs, shapes and textures; or a data set as in [data], "
        "such as cifar10 (the paper's) or folder",
    )
    source: str | None = Field(
        None, description="the folder, archive or Hugging Face id to read images from"
    )
    store: Path | None = Field(None, description="folder of the prepared images, as in [data]")
    layout: str = Field(
        "class", description="for `folder`: what each folder level names, as in [data]"
    )
    num_images: int | None = Field(
        None,
        ge=1,
        description="how many images to generate (default: 2000), or how many random images of a "
        "data set to keep (default: all)",
    )

    @model_validator(mode="after")
    def _check_together(self, info: ValidationInfo) -> Self:
        """Refuse options that [data] would refuse as well."""
        if self.name != "generated" and not (info.context or {}).get("only_look"):
            self.data_config(CIFAR_SIZE)
        return self

    def data_config(self, image_size: int, framing: Framing = WHOLE) -> DataConfig:
        """The [data] section that describes the same images."""
        own = CIFAR_SIZE if self.name in ("cifar10", "cifar100") else image_size
        return DataConfig.model_validate(
            {"name": self.name, "image_size": own}
            | (asdict(framing) if own == image_size else {})
            | self.model_dump(include={"source", "store", "layout"})
        )


def load_auxiliary(
    config: AuxiliaryConfig, image_size: int, seed: int, framing: Framing = WHOLE
) -> ImageSet:
    """The auxiliary images, at `image_size` or smaller; nobody reads their labels."""
    if config.name == "generated":
        return _generated(config.num_images or GENERATED_IMAGES, seed)
    if config.name == "text":
        raise InputError("auxiliary.name = 'text' does not match the images in [data]")
    images = load_images(config.data_config(image_size, framing))
    count = config.num_images
    if count is None or count >= len(images.labels):
        return images
    rng = numpy_generator(seed, "auxiliary")
    kept = np.sort(rng.choice(len(images.labels), count, replace=False))
    return ImageSet(images.name, images.images[kept], images.labels[kept], images.class_names)


def _generated(count: int, seed: int) -> ImageSet:
    classes = SyntheticClasses(derive_seed(seed, "auxiliary classes"))
    rng = torch_generator(seed, "auxiliary images")
    images: list[NDArray[np.uint8]] = []
    labels: list[NDArray[np.int64]] = []
    for drawn in range(0, count, DRAWN_AT_ONCE):
        pixels, ids = classes.draw(min(DRAWN_AT_ONCE, count - drawn), rng)
        images.append((pixels * 255).round().to(torch.uint8).numpy())
        labels.append(ids.numpy())
    names = tuple(f"class {number}" for number in range(classes.num_classes))
    return ImageSet("generated", np.concatenate(images), np.concatenate(labels), names)
