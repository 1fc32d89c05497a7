"""Images decoded and resized once, kept as uint8 in one memory-mapped file for all processes.

A finished store is a folder:

- `images.npy`: (n, 3, size, size) uint8, opened as a read-only memory map;
- `samples.npy`: (n, 3) int32, the class, owner and split of each image (0: training, 1: test,
  2: validation; -1 if the source names no owner or no split), with the group as a fourth column
  if the source names groups;
- `hashes.npy`: (n, 2) uint64, a checksum and a difference hash per image, written when first
  needed;
- `manifest.json`: names, counts, the origin of the images, the images left out, and the sha256 of
  `images.npy` and `samples.npy`.

`pfedseq.data.store_writer` creates it.
"""

import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedseq.data.dataset import ImageSet
from pfedseq.data.duplicates import image_hashes
from pfedseq.errors import InputError
from pfedseq.files import write_atomically

FORMAT = 1
VALIDATION = 2
"""The split of a validation image in `samples.npy`."""
Report = Callable[[str, int, int], None]
"""Called as report(stage, done, total) during long work."""


def silent(stage: str, done: int, total: int) -> None:
    """A `Report` that prints nothing."""


def is_finished(folder: Path) -> bool:
    """Whether a complete store exists."""
    return (folder / "manifest.json").is_file()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The contents of a store's manifest.json."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise _damaged(folder, f"its manifest.json cannot be read: {fault}") from fault
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _damaged(folder, "its manifest.json is of another version")
    return manifest


def open_store(folder: Path) -> ImageSet:
    """Map a finished store into memory, within milliseconds at any size.

    Labels are checked against their checksum; pixels only by their number (`verify_store` reads
    them all).
    """
    manifest = read_manifest(folder)
    images = _load(folder, "images.npy", mapped=True)
    samples = _load(folder, "samples.npy", mapped=False)
    side, num_images = manifest["image_size"], manifest["num_images"]
    if images.shape != (num_images, 3, side, side) or images.dtype != np.uint8:
        raise _damaged(folder, f"images.npy holds {images.dtype} {images.shape}")
    if sha256_of(folder / "samples.npy") != manifest["samples_sha256"]:
        raise _damaged(folder, "samples.npy does not match its checksum")
    labels, owners, splits, *groups = samples.astype(np.int64).T
    is_validation = splits == VALIDATION
    return ImageSet(
        name=manifest["name"],
        images=images,
        labels=labels,
        class_names=tuple(manifest["class_names"]),
        owners=owners if manifest["owner_names"] else None,
        owner_names=tuple(manifest["owner_names"]),
        is_test=splits == 1 if manifest["has_test"] else None,
        groups=groups[0] if groups else None,
        is_validation=is_validation if is_validation.any() else None,
        fingerprint=manifest["images_sha256"],
        notes=tuple(manifest["notes"]),
    )


def store_hashes(folder: Path, images: NDArray[np.uint8], report: Report) -> NDArray[np.uint64]:
    """(n, 2) the hashes of a store's images, computed on first use."""
    if (folder / "hashes.npy").is_file():
        hashes = _load(folder, "hashes.npy", mapped=False)
        if hashes.shape == (len(images), 2) and hashes.dtype == np.uint64:
            return hashes
    report("looking for copies", 0, 1)
    hashes = image_hashes(images)
    content = io.BytesIO()
    np.save(content, hashes)
    if os.access(folder, os.W_OK):  # otherwise they are computed again next time
        write_atomically(folder / "hashes.npy", content.getvalue())
    report("looking for copies", 1, 1)
    return hashes


def verify_store(folder: Path) -> None:
    """Read every pixel and compare the file with its checksum."""
    if sha256_of(folder / "images.npy") != read_manifest(folder)["images_sha256"]:
        raise _damaged(folder, "images.npy does not match its checksum")


def _load(folder: Path, name: str, *, mapped: bool) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(
            folder / name, mmap_mode="r" if mapped else None, allow_pickle=False
        )
    except (OSError, ValueError) as fault:
        raise _damaged(folder, f"{name} cannot be read: {fault}") from fault
    return array


def sha256_of(file: Path) -> str:
    """The checksum of a file, as hexadecimal digits."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _damaged(folder: Path, reason: str) -> InputError:
    return InputError(
        f"the prepared images in {folder} are damaged ({reason}): delete that folder and prepare "
        "the data set again"
    )
