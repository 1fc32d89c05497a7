"""From an image file, or raw pixels, to the uint8 array that the store keeps."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from pfedseq.data.source import RawImage
from pfedseq.errors import InputError


def decode(raw: RawImage, size: int) -> NDArray[np.uint8]:
    """One image as (3, size, size): RGB, resized with bicubic interpolation, sides not kept.

    Photographs are turned as their EXIF orientation says; transparency is dropped.
    """
    where, content = raw
    try:
        image: Image.Image
        if isinstance(content, bytes):
            image = Image.open(io.BytesIO(content))
            ImageOps.exif_transpose(image, in_place=True)
        else:
            image = Image.fromarray(content)
        # Grey stays one channel until after the resize: the same pixels for a third of the work.
        image = image.convert("L" if image.mode in ("1", "L") else "RGB")
    except Exception as fault:  # Pillow's decoders raise a dozen kinds of exception
        raise InputError(f"{where} is not a readable image ({fault})") from fault
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BICUBIC)
    pixels = np.atleast_3d(np.asarray(image))  # (size, size, 1 or 3)
    return np.broadcast_to(pixels.transpose(2, 0, 1), (3, size, size))
