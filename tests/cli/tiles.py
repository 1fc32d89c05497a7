"""Photographs of tiles from three sites, drawn: `python -m tests.cli.tiles photos`.

Every site has a camera of its own; a tile is whole, or a crack runs through it.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

SITES = ("harbour", "mill", "quarry")
TILES_OF_A_CLASS = 16
SIDE = 48


def draw_tiles(folder: Path) -> None:
    """96 readable photographs as SITE/CLASS/NNN.png, one that is not, and a note."""
    rng = np.random.default_rng(0)
    for site in SITES:
        for label in ("cracked", "whole"):
            place = folder / site / label
            place.mkdir(parents=True)
            for number in range(TILES_OF_A_CLASS):
                tile = _tile(rng, cracked=label == "cracked")
                _photograph(tile, site, rng).save(place / f"{number:03d}.png")
    (folder / "mill/whole/099.png").write_bytes(b"the camera's battery was empty")
    (folder / "quarry/notes.txt").write_text("rain on the second day\n")


def _tile(rng: np.random.Generator, *, cracked: bool) -> Image.Image:
    tile = Image.new("L", (SIDE, SIDE), 200)
    pen = ImageDraw.Draw(tile)
    pen.rectangle((3, 3, SIDE - 4, SIDE - 4), outline=120, width=2)
    x, y = rng.integers(14, SIDE - 14, 2).tolist()
    pen.ellipse((x - 6, y - 6, x + 6, y + 6), outline=140, width=2)
    if cracked:
        steps = np.linspace(4, SIDE - 5, 6)
        walk = rng.integers(10, SIDE - 10) + rng.normal(0, 5, 6).cumsum()
        points = list(zip(steps.tolist(), walk.clip(4, SIDE - 5).tolist(), strict=True))
        pen.line(points, fill=20, width=3)
    return tile


def _photograph(tile: Image.Image, site: str, rng: np.random.Generator) -> Image.Image:
    if site == "mill":
        tile = tile.rotate(70, fillcolor=200).filter(ImageFilter.GaussianBlur(1))
    values: NDArray[np.float64] = np.asarray(tile, dtype=np.float64)
    if site == "quarry":  # a negative
        values = 255 - values
    if site == "harbour":  # at dusk
        values = 0.4 * values
    noisy = values + rng.normal(0, 8, values.shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


if __name__ == "__main__":
    draw_tiles(Path(sys.argv[1]))
