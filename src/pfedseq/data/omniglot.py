"""Omniglot (Lake et al. 2015): 1,623 characters of 50 alphabets, each drawn by 20 people.

As in the paper, the label is the alphabet and the client is the drawer, whose number is at the end
of every file name (`0709_01.png` to `0709_20.png`).
"""

import re
from pathlib import Path, PurePosixPath

from pfedseq.data.file_tree import FileTree
from pfedseq.data.location import Location
from pfedseq.data.source import Entry, Source, compare_with_full, source_of_files
from pfedseq.errors import InputError

_PARTS = ("images_background", "images_evaluation")
_NUM_CHARACTERS = 1_623
_NUM_ALPHABETS = 50
_DRAWERS = tuple(f"drawer {number:02d}" for number in range(1, 21))
_FILE = re.compile(r"\d+_(\d\d)\.png")


def open_omniglot(location: Location) -> Source:
    """All drawings, from the two archives or their unpacked folders."""
    path = location.folder_or_archive("the folder of images_background and images_evaluation")
    tree = FileTree(path, open_zips=True)
    # Keyed by the end of the path: archives may lie beside their unpacked folders.
    drawings = {PurePosixPath(n).parts[-4:]: n for n in tree.images() if _part_of(n)}
    entries = [_entry(drawings[place], path) for place in sorted(drawings)]
    for part in _PARTS:
        if not any(_part_of(entry.member) == part for entry in entries):
            raise InputError(
                f"{path} does not contain {part}: Omniglot needs {_PARTS[0]}.zip and "
                f"{_PARTS[1]}.zip, or the two folders"
            )
    alphabets = sorted({entry.label for entry in entries})
    if len(alphabets) > _NUM_ALPHABETS:
        raise InputError(
            f"{path} has {len(alphabets)} alphabets, but Omniglot has {_NUM_ALPHABETS}: "
            "does it contain an extra folder?"
        )
    source = source_of_files("omniglot", entries, tree, class_names=alphabets, owner_names=_DRAWERS)
    return compare_with_full(source, [_NUM_CHARACTERS] * 20, by="owner", where=path)


def _part_of(name: str) -> str | None:
    """Which of the two parts a file belongs to; macOS copies and strays belong to none."""
    parts = PurePosixPath(name).parts
    return parts[-4] if len(parts) >= 4 and parts[-4] in _PARTS else None


def _entry(name: str, path: Path) -> Entry:
    *_, alphabet, _character, file = PurePosixPath(name).parts
    match = _FILE.fullmatch(file)
    if match is None or not 1 <= int(match[1]) <= len(_DRAWERS):
        raise InputError(
            f"{name} in {path} does not end in its drawer's number, _01.png to _20.png"
        )
    return Entry(name, label=alphabet, owner=_DRAWERS[int(match[1]) - 1])
