"""Augmentations of training images, by name: each a function of one image and a random stream.

To add one: write its function and name it in `AUGMENTATIONS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from pfedseq.base_config import BaseConfig
from pfedseq.seeding import torch_generator

Augment = Callable[[Tensor, Generator], Tensor]
"""An image (3, S, S) in [0, 1] to another."""


def flip(image: Tensor, rng: Generator) -> Tensor:
    """Mirror the image left to right with probability ½."""
    return image.flip(-1) if _uniform(rng) < 0.5 else image


def crop(image: Tensor, rng: Generator) -> Tensor:
    """Shift by up to an eighth of the side in both directions; edges are repeated."""
    side, most = image.shape[-1], max(1, image.shape[-1] // 8)
    wide = pad(image.unsqueeze(0), [most] * 4, mode="replicate")[0]
    top, left = (int(torch.randint(2 * most + 1, (), generator=rng)) for _ in range(2))
    return wide[:, top : top + side, left : left + side]


def zoom(image: Tensor, rng: Generator) -> Tensor:
    """Enlarge a random square of half to all of the area."""
    scale = math.sqrt(_uniform(rng, 0.5, 1.0))
    x, y = (_uniform(rng, scale - 1, 1 - scale) for _ in range(2))
    return _mapped(image, [[scale, 0.0, x], [0.0, scale, y]])


def rotate(image: Tensor, rng: Generator) -> Tensor:
    """Rotate by up to 15 degrees."""
    angle = math.radians(_uniform(rng, -15, 15))
    cos, sin = math.cos(angle), math.sin(angle)
    return _mapped(image, [[cos, -sin, 0.0], [sin, cos, 0.0]])


def color(image: Tensor, rng: Generator) -> Tensor:
    """Multiply brightness, contrast and saturation each by 0.6 to 1.4."""
    image = image * _uniform(rng, 0.6, 1.4)
    image = _away_from(image, image.mean(), _uniform(rng, 0.6, 1.4))
    return _away_from(image, image.mean(0, keepdim=True), _uniform(rng, 0.6, 1.4)).clamp(0, 1)


def posterize(image: Tensor, rng: Generator) -> Tensor:
    """Reduce each colour to 4 to 32 levels."""
    levels = float(2 ** int(torch.randint(2, 6, (), generator=rng)) - 1)
    return torch.round(image * levels) / levels


def solarize(image: Tensor, rng: Generator) -> Tensor:
    """Invert pixels above a threshold of 0.5 to 1."""
    return torch.where(image > _uniform(rng, 0.5, 1.0), 1 - image, image)


def erase(image: Tensor, rng: Generator) -> Tensor:
    """Replace a square of up to half the side by grey."""
    side = image.shape[-1]
    size = int(torch.randint(1, side // 2 + 1, (), generator=rng))
    top, left = (int(torch.randint(side - size + 1, (), generator=rng)) for _ in range(2))
    image = image.clone()
    image[:, top : top + size, left : left + size] = 0.5
    return image


def randaugment(image: Tensor, rng: Generator) -> Tensor:
    """Apply two of the others, drawn for each image."""
    for chosen in torch.randperm(len(_DRAWN), generator=rng)[:2].tolist():
        image = _DRAWN[chosen](image, rng)
    return image


_DRAWN: tuple[Augment, ...] = (flip, crop, zoom, rotate, color, posterize, solarize, erase)
AUGMENTATIONS: dict[str, Augment] = {
    **{function.__name__: function for function in _DRAWN},
    "randaugment": randaugment,
}
SETS: dict[str, tuple[str, ...]] = {
    "standard": ("flip", "crop"),
    "strong": ("flip", "zoom", "color"),
    "randaugment": ("flip", "crop", "randaugment"),
}
"""Sets of augmentations by name."""


class AugmentationConfig(BaseConfig):
    """Augmentation of training images; evaluation uses the originals."""

    augment: tuple[str, ...] = Field(
        (),
        description="augmentations of training images, in order, such as ['flip', 'crop', "
        f"'color'], or a set of them: {', '.join(SETS)}; paper: none",
    )
    views: int | None = Field(
        None,
        ge=1,
        description="augmented views of each training image whose frozen-layer tokens are "
        "cached, such as 4, if only the last layers carry adapters; memory grows "
        "accordingly",
    )

    @field_validator("augment", mode="before")
    @classmethod
    def _known_augmentations(cls, given: Any) -> Any:
        names = SETS.get(given, (given,)) if isinstance(given, str) else given
        for name in names if isinstance(names, list | tuple) else ():
            if name not in AUGMENTATIONS:
                raise ValueError(
                    f"{name!r} is neither an augmentation ({', '.join(AUGMENTATIONS)}) nor a set "
                    f"({', '.join(SETS)})"
                )
        return names

    @model_validator(mode="after")
    def _views_are_of_something(self) -> Self:
        if self.views is not None and not self.augment:
            raise ValueError("views needs augmented images: set augment, such as 'standard'")
        return self


def augmented(image: Tensor, names: Sequence[str], seed: int, *stream: str | int) -> Tensor:
    """Apply the named augmentations to a uint8 image (3, S, S), using only this random stream."""
    rng, changed = torch_generator(seed, "augmentation", *stream), image.float() / 255
    for name in names:
        changed = AUGMENTATIONS[name](changed, rng)
    return (changed.clamp(0, 1) * 255).round().to(torch.uint8)


def _uniform(rng: Generator, low: float = 0.0, high: float = 1.0) -> float:
    return low + (high - low) * float(torch.rand((), generator=rng))


def _away_from(image: Tensor, middle: Tensor, factor: float) -> Tensor:
    return (middle + factor * (image - middle)).clamp(0, 1)


def _mapped(image: Tensor, matrix: list[list[float]]) -> Tensor:
    """Sample each pixel at its position mapped by the matrix, in [−1, 1]²; edges are repeated."""
    grid = affine_grid(torch.tensor([matrix]), [1, *image.shape], align_corners=False)
    mapped: Tensor = grid_sample(
        image.unsqueeze(0), grid, padding_mode="border", align_corners=False
    )
    return mapped[0]
