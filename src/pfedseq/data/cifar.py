"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): hub parquet, or the original python archives."""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedseq.data.location import Location
from pfedseq.data.safe_pickle import read_pickle
from pfedseq.data.source import Block, RawImage, Source, block_ranges, compare_with_full
from pfedseq.data.tabular import source_of_table
from pfedseq.errors import InputError

_CLASSES_10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CLASSES_100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""


@dataclass(frozen=True)
class _Variant:
    name: str
    folder: str
    train_files: tuple[str, ...]
    test_file: str
    label_key: str
    class_names: tuple[str, ...]


_VARIANTS = {
    "cifar10": _Variant(
        name="cifar10",
        folder="cifar-10-batches-py",
        train_files=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test_file="test_batch",
        label_key="labels",
        class_names=tuple(_CLASSES_10.split()),
    ),
    "cifar100": _Variant(
        name="cifar100",
        folder="cifar-100-python",
        train_files=("train",),
        test_file="test",
        label_key="fine_labels",
        class_names=tuple(_CLASSES_100.split()),
    ),
}


def open_cifar(name: str, location: Location) -> Source:
    """All images, training before test, in the published order (PFLlib's merged order)."""
    variant = _VARIANTS[name]
    table = location.table()
    if table is not None:
        label_column = "fine_label" if name == "cifar100" else "label"
        source = source_of_table(
            name, table, label_column=label_column, class_names=variant.class_names
        )
    else:
        path = location.folder_or_archive(f"{variant.folder}.tar.gz or a folder of parquet files")
        source = _open_batches(variant, path)
    full = [60_000 // len(variant.class_names)] * len(variant.class_names)
    return compare_with_full(source, full, by="class", where=str(location))


def _open_batches(variant: _Variant, path: Path) -> Source:
    files = (*variant.train_files, variant.test_file)
    contents = _read_folder(variant, path, files) if path.is_dir() else _read_tar(path, files)
    pixels, labels = [], []
    for file in files:
        batch_pixels, batch_labels = _check_batch(variant, contents[file], f"{file} in {path}")
        pixels.append(batch_pixels)
        labels.append(batch_labels)
    all_labels = np.concatenate(labels)
    all_pixels = np.concatenate(pixels)
    num_test = len(labels[-1])
    return Source(
        name=variant.name,
        labels=all_labels,
        class_names=variant.class_names,
        is_test=np.arange(len(all_labels)) >= len(all_labels) - num_test,
        blocks=tuple(
            Block(stop - start, partial(_pixels_of, all_pixels[start:stop], start, str(path)))
            for start, stop in block_ranges(len(all_labels))
        ),
    )


def _pixels_of(rows: NDArray[np.uint8], first: int, where: str) -> Iterator[RawImage]:
    for number, row in enumerate(rows, start=first):
        yield f"image {number} of {where}", row.reshape(3, 32, 32).transpose(1, 2, 0).copy()


def _read_folder(variant: _Variant, folder: Path, files: tuple[str, ...]) -> dict[str, bytes]:
    """The batches of an unpacked archive; `folder` may be the one around it."""
    inner = folder / variant.folder if (folder / variant.folder).is_dir() else folder
    missing = [file for file in files if not (inner / file).is_file()]
    if missing:
        raise InputError(
            f"{folder} has neither parquet files nor CIFAR's {missing[0]}: give the folder of "
            f"parquet files, {variant.folder}.tar.gz, or its unpacked folder"
        )
    return {file: (inner / file).read_bytes() for file in files}


def _read_tar(path: Path, files: tuple[str, ...]) -> dict[str, bytes]:
    """The required members, by file name; nothing is unpacked to disk."""
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                if ".." in member.name.split("/") or member.name.startswith("/"):
                    raise InputError(
                        f"{path} is refused: its member {member.name} points outside the archive"
                    )
                content = archive.extractfile(member) if member.isfile() else None
                if name in files and content is not None:
                    contents[name] = content.read()
    except InputError:
        raise
    except Exception as fault:  # tar, gzip, zlib and EOF errors have no common base
        raise InputError(
            f"{path} is not a complete CIFAR archive ({fault}): download it again"
        ) from fault
    missing = [file for file in files if file not in contents]
    if missing:
        raise InputError(f"{path} does not contain {missing[0]}: is it another data set's archive?")
    return contents


def _check_batch(
    variant: _Variant, content: bytes, where: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    batch: Any = read_pickle(content, where)
    pixels = batch.get("data") if isinstance(batch, dict) else None
    labels = batch.get(variant.label_key) if isinstance(batch, dict) else None
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2:
        raise InputError(f"{where} contains no images: is it {variant.name}?")
    if not isinstance(labels, list) or len(labels) != len(pixels) or pixels.shape[1] != 3072:
        raise InputError(f"{where} does not have a label ({variant.label_key}) for each image")
    numbers = np.asarray(labels, dtype=np.int64)
    wrong = np.flatnonzero((numbers < 0) | (numbers >= len(variant.class_names)))
    if len(wrong):
        raise InputError(
            f"image {wrong[0]} of {where} has the label {numbers[wrong[0]]}, which is not between "
            f"0 and {len(variant.class_names) - 1}"
        )
    return pixels, numbers
