"""Scikit-learn's 1,797 digits (UCI optical recognition, 8×8), and the demo's scanner styles.

The digits come with scikit-learn, so they need no download. In the feature-skew scenario every
client has one scanner, which rotates, blurs, fades and grains all its images in the same way, as
dark ink on light paper: labels mean the same at every client while features differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from pfedseq.data.dataset import ClientData, ImageSet

FRAME_SHARE = 0.75
"""Share of the frame's side that the digit takes: leaves room for rotation."""
STYLE_STREAM = 0x5CA77E2
"""Separates the styles' random stream from the partition's, which has the same seed."""


@dataclass(frozen=True)
class ScannerStyle:
    """The distortions that one client's scanner applies to every page."""

    rotation: float
    """Degrees, anticlockwise."""
    blur: float
    """Standard deviation of the blur, as a share of the image's side."""
    contrast: float
    """Contrast of ink against paper, in (0, 1]."""
    noise: float
    """Standard deviation of the grain, as a share of the full range."""


def digits_images(image_size: int) -> ImageSet:
    """All digits, bicubically enlarged, light ink on black, (1797, 3, size, size)."""
    digits, labels = _read_digits()
    digit_size = max(1, round(FRAME_SHARE * image_size))
    margin = (image_size - digit_size) // 2
    pages = np.zeros((len(digits), image_size, image_size), dtype=np.uint8)
    for page, digit in zip(pages, digits, strict=True):
        ink = Image.fromarray((digit * (255 / 16)).astype(np.uint8))
        inside = slice(margin, margin + digit_size)
        page[inside, inside] = np.asarray(
            ink.resize((digit_size, digit_size), Image.Resampling.BICUBIC)
        )
    return ImageSet(
        name="digits",
        images=_three_channels(pages),
        labels=labels,
        class_names=tuple(str(digit) for digit in range(10)),
    )


def _read_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The data of `load_digits`: 8×8 pixels from 0 to 16, and labels.

    Read from scikit-learn's file, since importing it takes a second and 60 MB.
    """
    found = find_spec("sklearn")
    assert found is not None  # a dependency
    assert found.submodule_search_locations is not None
    file = Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    rows = np.loadtxt(file, delimiter=",")
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)


def draw_styles(num_clients: int, seed: int, most_turned: float) -> tuple[ScannerStyle, ...]:
    """One style per client. Each quality is spread evenly over its range and shuffled.

    An even spread, rather than independent draws, keeps the gap between clients under every
    seed.
    """
    rng = np.random.RandomState((seed, STYLE_STREAM))

    def spread(low: float, high: float) -> NDArray[np.float64]:
        return rng.permutation(np.linspace(low, high, num_clients))

    rotation = spread(-most_turned, most_turned)
    blur = spread(0.0, 0.03)
    contrast = spread(0.6, 1.0)
    noise = spread(0.0, 0.04)
    return tuple(
        ScannerStyle(
            rotation=float(rotation[i]),
            blur=float(blur[i]),
            contrast=float(contrast[i]),
            noise=float(noise[i]),
        )
        for i in range(num_clients)
    )


def scan_for_clients(
    images: ImageSet,
    clients: Sequence[ClientData],
    seed: int,
    most_turned: float,
    num_scanners: int | None = None,
) -> ImageSet:
    """A copy of the images with each client's scanner applied to its own.

    Scanners rotate by up to `most_turned` degrees either way. With fewer scanners than clients,
    client i uses scanner i modulo their number; by default every client has its own.
    """
    scanned = images.images.copy()
    owners = np.full(len(images.labels), -1, dtype=np.int64)
    styles = draw_styles(num_scanners or len(clients), seed, most_turned)
    for number, client in enumerate(clients):
        style = styles[number % len(styles)]
        members = np.sort(np.concatenate([client.train, client.validation, client.test]))
        grain = np.random.RandomState((seed, STYLE_STREAM, number))
        scanned[members] = _three_channels(_scan(images.images[members, 0], style, grain))
        owners[members] = number
    return replace(
        images, images=scanned, owners=owners, owner_names=tuple(c.name for c in clients)
    )


def _scan(
    pages: NDArray[np.uint8], style: ScannerStyle, rng: np.random.RandomState
) -> NDArray[np.uint8]:
    """Send light-on-dark pages (n, size, size) through one scanner: dark ink on light paper.

    All scanners invert: the demo's backbone has only seen light ink, so clients have something to
    learn together, besides each one's rotation, blur, contrast and grain.
    """
    blur = ImageFilter.GaussianBlur(style.blur * pages.shape[-1])
    turned = (
        Image.fromarray(page).rotate(style.rotation, Image.Resampling.BICUBIC) for page in pages
    )
    ink = np.stack([np.asarray(page.filter(blur)) for page in turned]) / 255.0
    # Ink and paper stay centred on mid-grey, so a faint scanner is faint and not merely dark.
    ink = 0.5 - style.contrast * (ink - 0.5)
    ink = ink + style.noise * rng.standard_normal(ink.shape)
    return np.round(255.0 * np.clip(ink, 0.0, 1.0)).astype(np.uint8)


def _three_channels(pages: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(n, size, size) grey to (n, 3, size, size)."""
    return np.repeat(pages[:, None], 3, axis=1)
