"""Checks the size and format of an uploaded image before it is decoded."""

from __future__ import annotations

import io
import warnings

from PIL import Image

from pfedseq.workloads.uploads import Refused

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
"""Accepted formats; Pillow reads more, some of them by starting other programs."""
MOST_PIXELS = 50_000_000


def check_image(content: bytes) -> int:
    """The number of pixels, from the header; refuses other content and too large images."""
    if not content:
        raise Refused(400, "the request has no image: send its bytes as the body")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                width, height = image.size
    except Image.DecompressionBombError:  # several times Pillow's own limit, and ours
        raise Refused(
            413, f"the image has too many pixels: send one of at most {MOST_PIXELS:,}"
        ) from None
    except Exception as problem:  # Pillow's openers raise many kinds
        raise Refused(
            415, f"the body is not an image in a supported format ({_kinds()})"
        ) from problem
    if width * height > MOST_PIXELS:
        raise Refused(
            413, f"the image has {width} × {height} pixels: send one of at most {MOST_PIXELS:,}"
        )
    return width * height


def _kinds() -> str:
    return ", ".join(FORMATS[:-1]) + f" or {FORMATS[-1]}"
