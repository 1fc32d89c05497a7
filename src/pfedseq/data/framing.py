"""How an image of any size becomes a square: resized, and cropped to its centre where asked."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from PIL import Image

Interpolation = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
"""Pillow's, in the order of its numbers."""
Resize = Literal["whole", "shorter"]


@dataclass(frozen=True)
class Framing:
    """By default the whole image becomes the square, by bicubic interpolation."""

    interpolation: Interpolation = "bicubic"
    resize: Resize = "whole"
    """`whole`: both sides, whatever their ratio; `shorter`: the shorter one, the ratio is kept."""
    resize_to: int | None = None
    """Pixels that `resize` makes of a side before the centre is cropped; None: the square's."""

    @property
    def resample(self) -> int:
        """Pillow's number of the interpolation, as preprocessor_config.json has it."""
        return get_args(Interpolation).index(self.interpolation)

    def square(self, image: Image.Image, side: int) -> Image.Image:
        """The image with `side` pixels a side.

        Sizes and offsets are rounded down, as transformers does it.
        """
        target = self.resize_to or side
        width, height = image.size
        short = min(width, height)
        size = (target, target)
        if self.resize == "shorter":
            size = (target * width // short, target * height // short)
        if image.size != size:
            image = image.resize(size, Image.Resampling(self.resample))
        left, top = (size[0] - side) // 2, (size[1] - side) // 2
        if size == (side, side):
            return image
        return image.crop((left, top, left + side, top + side))

    def differences(self) -> dict[str, Any]:
        """The fields that differ from the default, as options of `[data]`."""
        return {key: value for key, value in asdict(self).items() if value != getattr(WHOLE, key)}


WHOLE = Framing()
