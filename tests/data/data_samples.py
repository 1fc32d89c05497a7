"""Broken copies of real samples, and small images."""

import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image


def copy_zip(
    original: Path,
    copy: Path,
    *,
    change: Mapping[str, bytes | None] | None = None,
    keep: Callable[[str], bool] = lambda name: True,
) -> Path:
    """A copy of a zip with some members replaced, added, or (None) left out."""
    change = dict(change or {})
    with zipfile.ZipFile(original) as old, zipfile.ZipFile(copy, "w") as new:
        for name in old.namelist():
            content = change.pop(name, old.read(name) if keep(name) else None)
            if content is not None:
                new.writestr(name, content)
        for name, content in change.items():
            if content is not None:
                new.writestr(name, content)
    return copy


def truncated(original: Path, copy: Path, share: float = 0.6) -> Path:
    content = original.read_bytes()
    copy.write_bytes(content[: int(share * len(content))])
    return copy


def png(seed: int = 0, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, "PNG")
    return out.getvalue()


def write_images(folder: Path, names: list[str]) -> Path:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(number))
    return folder
