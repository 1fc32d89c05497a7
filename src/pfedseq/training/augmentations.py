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
    """Left and right exchanged, every other time."""
    return image.flip(-1) if _uniform(rng) < 0.5 else image


def crop(image: Tensor, rng: Generator) -> Tensor:
    """Shifted by up to an eighth of its side in both directions; edges are repeated."""
    side, most = image.shape[-1], max(1, image.shape[-1] // 8)
    wide = pad(image.unsqueeze(0), [most] * 4, mode="replicate")[0]
    top, left = (int(torch.randint(2 * most + 1, (), generator=rng)) for _ in range(2))
    return wide[:, top : top + side, left : left + side]


def zoom(image: Tensor, rng: Generator) -> Tensor:
    """A square of half to all of its area, enlarged to the whole."""
    scale = math.sqrt(_uniform(rng, 0.5, 1.0))
    x, y = (_uniform(rng, scale - 1, 1 - scale) for _ in range(2))
    return _mapped(image, [[scale, 0.0, x], [0.0, scale, y]])


def rotate(image: Tensor, rng: Generator) -> Tensor:
    """Turned by up to 15 degrees."""
    angle = math.radians(_uniform(rng, -15, 15))
    cos, sin = math.cos(angle), math.sin(angle)
    return _mapped(image, [[cos, -sin, 0.0], [sin, cos, 0.0]])


def color(image: Tensor, rng: Generator) -> Tensor:
    """Brightness, contrast and saturation each multiplied by 0.6 to 1.4."""
    image = image * _uniform(rng, 0.6, 1.4)
    image = _away_from(image, image.mean(), _uniform(rng, 0.6, 1.4))
    return _away_from(image, image.mean(0, keepdim=True), _uniform(rng, 0.6, 1.4)).clamp(0, 1)


def posterize(image: Tensor, rng: Generator) -> Tensor:
    """4 to 32 levels of each colour."""
    levels = float(2 ** int(torch.randint(2, 6, (), generator=rng)) - 1)
    return torch.round(image * levels) / levels


def solarize(image: Tensor, rng: Generator) -> Tensor:
    """Inverted where it is brighter than 0.5 to 1."""
    return torch.where(image > _uniform(rng, 0.5, 1.0), 1 - image, image)


def erase(image: Tensor, rng: Generator) -> Tensor:
    """A square of up to half its side made grey."""
    side = image.shape[-1]
    size = int(torch.randint(1, side // 2 + 1, (), generator=rng))
    top, left = (int(torch.randint(side - size + 1, (), generator=rng)) for _ in range(2))
    image = image.clone()
    image[:, top : top + size, left : left + size] = 0.5
    return image


def randaugment(image: Tensor, rng: Generator) -> Tensor:
    """Two of the others, drawn anew for each image."""
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
"""Several by one name."""


class AugmentationConfig(BaseConfig):
    """How training images are changed; evaluations see them as they are."""

    augment: tuple[str, ...] = Field(
        (),
        description="augmentations of training images, in order, such as ['flip', 'crop', "
        f"'color'], or a set of them: {', '.join(SETS)}; paper: none",
    )
    views: int | None = Field(
        None,
        ge=1,
        description="augmented views of each training image to keep the frozen layers' tokens of, "
        "such as 4, where adapters are in the last layers alone; takes as many times the room",
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
            raise ValueError("views are of augmented images: set augment, such as 'standard'")
        return self


def augmented(image: Tensor, names: Sequence[str], seed: int, *stream: str | int) -> Tensor:
    """A uint8 image (3, S, S) after the named augmentations, drawn from that stream alone."""
    rng, changed = torch_generator(seed, "augmentation", *stream), image.float() / 255
    for name in names:
        changed = AUGMENTATIONS[name](changed, rng)
    return (changed.clamp(0, 1) * 255).round().to(torch.uint8)


def _uniform(rng: Generator, low: float = 0.0, high: float = 1.0) -> float:
    return low + (high - low) * float(torch.rand((), generator=rng))


def _away_from(image: Tensor, middle: Tensor, factor: float) -> Tensor:
    return (middle + factor * (image - middle)).clamp(0, 1)


def _mapped(image: Tensor, matrix: list[list[float]]) -> Tensor:
    """Each pixel from where the matrix maps its place to, in [−1, 1]²; edges are repeated."""
    grid = affine_grid(torch.tensor([matrix]), [1, *image.shape], align_corners=False)
    mapped: Tensor = grid_sample(
        image.unsqueeze(0), grid, padding_mode="border", align_corners=False
    )
    return mapped[0]
