"""From an image file, or raw pixels, to the uint8 array that the store keeps."""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from pfedseq.data.dicom import is_dicom, read_dicom
from pfedseq.data.framing import WHOLE, Framing
from pfedseq.data.source import RawImage
from pfedseq.errors import InputError

Window = tuple[float, float]
"""The values mapped to black and white."""

_DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's grey modes of more than 8 bits: integers of 16 and 32 bits, and floats."""
_PHOTOMETRIC, _SAMPLE_FORMAT = 262, 339
_WHITE_IS_ZERO, _UNSIGNED = 0, 1


@dataclass(frozen=True)
class Decoded:
    """One decoded image, and conversions that the user should know about."""

    pixels: NDArray[np.uint8]
    """(3, size, size)."""
    deep: bool = False
    """It had more than 8 bits of grey and was rescaled."""
    paged: bool = False
    """It has several pages or frames; the first was taken."""


def decode(
    raw: RawImage, size: int, window: Window | None = None, framing: Framing = WHOLE
) -> Decoded:
    """One image as (3, size, size): RGB, resized and cropped as `framing` says.

    The EXIF orientation of photographs is applied; transparency is dropped. A grey image of more
    than 8 bits is rescaled linearly so that `window` maps to 0 to 255, with clipping; without a
    window, each image's own darkest and brightest values are used.
    """
    where, content = raw
    if isinstance(content, InputError):
        raise content
    try:
        image: Image.Image
        deep = False
        if isinstance(content, bytes) and is_dicom(content):
            file = read_dicom(content, window)
            grey = file.values.ndim == 2
            image = Image.fromarray(_rescale(file.values, file.window) if grey else file.values)
            deep, paged = not file.stated, file.frames > 1
        elif isinstance(content, bytes):
            image = Image.open(io.BytesIO(content))
            paged = image.format == "TIFF" and getattr(image, "n_frames", 1) > 1
            ImageOps.exif_transpose(image, in_place=True)
        else:
            image, paged = Image.fromarray(content), False
        if image.mode in _DEEP_MODES:
            image, deep = Image.fromarray(_rescaled(image, window)), True
        # Grey stays one channel until after the resize: the same pixels for a third of the work.
        image = image.convert("L" if image.mode in ("1", "L") else "RGB")
    except Exception as fault:  # Pillow's decoders raise a dozen kinds of exception
        raise InputError(f"{where} is not a readable image ({_why(fault, content)})") from fault
    pixels = np.atleast_3d(np.asarray(framing.square(image, size)))  # (size, size, 1 or 3)
    return Decoded(np.broadcast_to(pixels.transpose(2, 0, 1), (3, size, size)), deep, paged)


def _rescaled(image: Image.Image, window: Window | None) -> NDArray[np.uint8]:
    """The grey values in 8 bits, with the file's photometric interpretation applied."""
    values = np.asarray(image)
    tags = getattr(image, "tag_v2", {})
    if values.dtype == np.int32 and tags and tags.get(_SAMPLE_FORMAT, (1,))[0] == _UNSIGNED:
        values = values.view(np.uint32)  # Pillow has no unsigned 32-bit mode and wraps around
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:  # Pillow inverts 8-bit images, but not deeper ones
        window = None if window is None else (-window[1], -window[0])
        return _rescale(values, window, sign=-1.0)
    return _rescale(values, window)


def _rescale(values: NDArray[Any], window: Window | None, sign: float = 1.0) -> NDArray[np.uint8]:
    """Map `window` (or the darkest and brightest finite values) of sign · values to 0 and 255.

    Works on a strip of rows at a time, so that a large image is never in memory as floats.
    """
    if not np.isfinite(values).any():
        raise ValueError("none of its values is a finite number")
    low, high = window or _darkest_and_brightest(values, sign)
    # NaN becomes black; a constant image has no contrast to stretch and becomes black, too.
    spread = high - low if high > low else 1.0
    scaled = np.empty(values.shape, np.uint8)
    for rows in _strips(values):
        shares = (sign * values[rows].astype(np.float64) - low) / spread
        shares = np.nan_to_num(shares, nan=0.0, posinf=1.0, neginf=0.0)
        scaled[rows] = np.rint(255 * np.clip(shares, 0, 1))
    return scaled


def _darkest_and_brightest(values: NDArray[Any], sign: float) -> Window:
    ends = []
    for rows in _strips(values):
        strip = sign * values[rows].astype(np.float64)
        if (finite := strip[np.isfinite(strip)]).size:
            ends += [finite.min(), finite.max()]
    return min(ends), max(ends)


def _strips(values: NDArray[Any]) -> Iterator[slice]:
    """Rows of about a million values at a time."""
    rows = max(1, 1_000_000 // max(1, values[0].size))
    return (slice(first, first + rows) for first in range(0, len(values), rows))


def _why(fault: Exception, content: object) -> str:
    """The reason for a failure, without the object addresses in Pillow's messages."""
    if isinstance(content, bytes) and not content:
        return "the file is empty"
    if isinstance(fault, UnidentifiedImageError):
        return "Pillow does not recognise its image format"
    return re.sub(r"<[^>]* at 0x[0-9a-fA-F]+>", "the file", str(fault)) or type(fault).__name__
