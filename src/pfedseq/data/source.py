"""A data set on disk: the labels of all images, and readers for blocks of them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pfedseq.errors import InputError

BLOCK_SIZE = 256
"""Images per block: the unit of parallel work, of progress and of resuming."""

RawImage = tuple[str, bytes | NDArray[np.uint8] | InputError]
"""An image's location (for messages) and its content.

The content is an encoded file, pixels (height, width, 3), or the reason why it cannot be read.
"""


@dataclass(frozen=True)
class Block:
    """Consecutive images that are read together; `read` may be called from any thread."""

    size: int
    read: Callable[[], Iterable[RawImage]]


@dataclass(frozen=True)
class Source:
    """Labelled images in the order of their blocks. Nothing has been decoded yet."""

    name: str
    labels: NDArray[np.int64]
    """(n,) class indices."""
    class_names: tuple[str, ...]
    blocks: tuple[Block, ...]
    owners: NDArray[np.int64] | None = None
    """(n,) the natural client of each image, if the data names one."""
    owner_names: tuple[str, ...] = ()
    is_test: NDArray[np.bool_] | None = None
    """(n,) the source's own test images, if any."""
    groups: NDArray[np.int64] | None = None
    """(n,) the group of each image, if the data names one."""
    is_validation: NDArray[np.bool_] | None = None
    """(n,) the source's own validation images, if it also has test images."""
    notes: tuple[str, ...] = ()
    """Remarks for the user, for example that this is only part of the data set."""


@dataclass(frozen=True)
class Entry:
    """One image found by a loader, before names are turned into numbers."""

    member: str
    label: str
    owner: str = ""
    is_test: bool = False
    group: str = ""
    is_validation: bool = False


class Files(Protocol):
    """Files by name, readable from several threads, such as a `FileTree`."""

    def read(self, name: str) -> bytes:
        """The bytes of one file; raises InputError if it cannot be read."""

    def describe(self, name: str) -> str:
        """Where a file is, for messages."""


def source_of_files(
    name: str,
    entries: Sequence[Entry],
    tree: Files,
    *,
    class_names: Sequence[str],
    owner_names: Sequence[str] = (),
    has_test: bool = False,
) -> Source:
    """A source whose images are separate files of `tree`, in the order of `entries`."""
    class_number = {label: number for number, label in enumerate(class_names)}
    owner_number = {owner: number for number, owner in enumerate(owner_names)}
    owners = [owner_number[entry.owner] for entry in entries] if owner_names else None
    has_validation = any(entry.is_validation for entry in entries)
    return Source(
        name=name,
        labels=np.array([class_number[entry.label] for entry in entries], dtype=np.int64),
        class_names=tuple(class_names),
        owners=None if owners is None else np.array(owners, dtype=np.int64),
        owner_names=tuple(owner_names),
        is_test=np.array([entry.is_test for entry in entries]) if has_test else None,
        groups=number_groups([(entry.owner, entry.group) for entry in entries]),
        is_validation=np.array([e.is_validation for e in entries]) if has_validation else None,
        blocks=tuple(
            Block(stop - start, partial(_read_files, entries[start:stop], tree))
            for start, stop in block_ranges(len(entries))
        ),
    )


def number_groups(named: Sequence[tuple[str, str]]) -> NDArray[np.int64] | None:
    """(n,) a number for each (owner, group); None if no group has a name.

    Groups of different owners differ: every hospital has a patient 1. An example without a group
    name forms its own group.
    """
    if not any(group for _, group in named):
        return None
    numbers: dict[object, int] = {}
    keys = [pair if pair[1] else place for place, pair in enumerate(named)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


TEST_SPLITS = ("test", "testing")
VALIDATION_SPLITS = ("valid", "validation", "val", "dev")


def split_roles(splits: Sequence[str]) -> tuple[NDArray[np.bool_], NDArray[np.bool_] | None]:
    """(is test, is validation) of rows by the name of their split.

    If no split is called `test`, the validation split is used instead.
    """
    names = np.char.lower(np.asarray(splits, dtype=np.str_))
    test, validation = np.isin(names, TEST_SPLITS), np.isin(names, VALIDATION_SPLITS)
    if not test.any():
        return validation, None
    return test, validation if validation.any() else None


def _read_files(entries: Sequence[Entry], tree: Files) -> Iterator[RawImage]:
    for entry in entries:
        content: bytes | InputError
        try:
            content = tree.read(entry.member)
        except InputError as fault:
            content = fault
        yield tree.describe(entry.member), content


def block_ranges(num_images: int, block_size: int = BLOCK_SIZE) -> Iterator[tuple[int, int]]:
    """(start, stop) of consecutive blocks."""
    for start in range(0, num_images, block_size):
        yield start, min(start + block_size, num_images)


def compare_with_full(
    source: Source, full_sizes: Sequence[int], *, by: str, where: Path | str
) -> Source:
    """Check the images per class (or per owner) against the published data set.

    A part of the data set is accepted with a remark in `notes`; more images than were published
    indicate a wrong or duplicated source and are refused.
    """
    numbers, names = (
        (source.labels, source.class_names)
        if by == "class"
        else (source.owners, source.owner_names)
    )
    assert numbers is not None
    found = np.bincount(numbers, minlength=len(names))
    full = np.asarray(full_sizes)
    if (found > full).any():
        worst = int(np.argmax(found - full))
        raise InputError(
            f"{where} has {found[worst]} images of {by} {names[worst]!r}, but {source.name} has "
            f"only {full[worst]}: check for copies or a wrong folder"
        )
    if found.sum() == full.sum():
        return source
    note = f"only part of {source.name}: {found.sum():,} of {full.sum():,} images"
    empty = [names[number] for number in np.flatnonzero(found == 0)]
    if empty:
        note += f", and none of {len(empty)} {'classes' if by == 'class' else 'owners'}"
        note += f" ({', '.join(empty[:3])}{', …' if len(empty) > 3 else ''})"
    return replace(source, notes=(*source.notes, note))
