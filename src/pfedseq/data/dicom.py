"""DICOM files as images, through the optional `pydicom` package.

Grey values are rescaled with the file's slope and intercept (for CT to Hounsfield units), then a
window is mapped to black and white: the config's `data.window`, else the file's own, else its
darkest and brightest values. MONOCHROME1, where low values are bright, is inverted; colour images
become RGB.
"""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedseq.errors import InputError

try:
    import pydicom
    from pydicom import pixels
except ImportError:  # the extra `dicom` is not installed
    pydicom = None

SUFFIXES = frozenset({".dcm", ".dicom"})
Window = tuple[float, float]


@dataclass(frozen=True)
class Dicom:
    """The first frame of a file, before a window is applied to grey values."""

    values: NDArray[Any]
    """(height, width) of floats, or (height, width, 3) of uint8."""
    window: Window | None
    """The values mapped to black and white; None: the darkest and brightest of `values`."""
    stated: bool
    """Whether the config or the file has chosen the window."""
    frames: int


def is_dicom(content: bytes) -> bool:
    """Whether a file starts with DICOM's signature."""
    return content[128:132] == b"DICM"


def read_dicom(content: bytes, window: Window | None) -> Dicom:
    """Read the first frame; `window` overrides the file's own. Raises whatever pydicom raises."""
    if pydicom is None:
        raise InputError("it is a DICOM file, which needs `pip install 'pfedseq[dicom]'`")
    file = pydicom.dcmread(io.BytesIO(content))
    frames = int(file.get("NumberOfFrames", 1) or 1)
    values = np.asarray(pixels.pixel_array(file, index=0))  # YBR has become RGB
    if values.ndim == 3:
        shift = max(0, int(file.BitsStored) - 8)
        return Dicom((values >> shift).astype(np.uint8), None, True, frames)
    if file.PhotometricInterpretation == "PALETTE COLOR":
        coloured = pixels.apply_color_lut(values, file)[..., :3]
        shift = 8 * (coloured.dtype.itemsize - 1)
        return Dicom((coloured >> shift).astype(np.uint8), None, True, frames)
    plain = int(file.BitsStored) <= 8 and not _rescales(file)
    grey = np.asarray(pixels.apply_modality_lut(values, file), dtype=np.float64)
    chosen = window or _own_window(file)
    if chosen is None and "VOILUTSequence" in file:
        grey = np.asarray(pixels.apply_voi_lut(grey.astype(values.dtype), file), dtype=np.float64)
    elif chosen is None and plain:
        chosen = (0.0, 2.0 ** int(file.BitsStored) - 1)
    if file.PhotometricInterpretation == "MONOCHROME1":
        grey, chosen = -grey, None if chosen is None else (-chosen[1], -chosen[0])
    return Dicom(grey, chosen, chosen is not None, frames)


def _rescales(file: Any) -> bool:
    return "RescaleSlope" in file or "ModalityLUTSequence" in file


def _own_window(file: Any) -> Window | None:
    """The first of the file's windows; DICOM's linear function, PS3.3 C.11.2.1.2."""
    centre, width = (file.get(key) for key in ("WindowCenter", "WindowWidth"))
    if centre is None or width is None:
        return None
    centre, width = (float(v[0] if _several(v) else v) for v in (centre, width))
    reach = max(width - 1, 0) / 2
    return (centre - 0.5 - reach, centre - 0.5 + reach) if reach else None


def _several(value: Any) -> bool:
    return not isinstance(value, str | float | int) and hasattr(value, "__getitem__")
