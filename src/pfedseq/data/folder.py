"""A folder or archive of images whose folder levels name the class, client and split."""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from pfedseq.data.dicom import SUFFIXES as DICOM_SUFFIXES
from pfedseq.data.file_tree import HEIC_SUFFIXES, IMAGE_SUFFIXES, FileTree
from pfedseq.data.location import Location
from pfedseq.data.source import Entry, Source, source_of_files, split_roles
from pfedseq.errors import InputError
from pfedseq.words import count, some


def open_folder(location: Location, layout: str, advice: str | None = None) -> Source:
    """All images at the depth that `layout` describes, such as `owner/class/*.jpg`.

    `advice` replaces the default advice for an image at another depth.

    Images at another depth are an error: skipping them silently would change the data set.
    """
    path = location.folder_or_archive("a folder of images")
    tree = FileTree(path)
    levels = layout.split("/")
    found = []
    for name in tree.images():
        folders = PurePosixPath(name).parts[:-1]
        if len(folders) != len(levels):
            needs = (
                f"data.layout = {layout!r} needs {len(levels)}"
                if advice is None
                else "one is expected"
            )
            depth = count(len(folders), "folder") if folders else "no folder"
            raise InputError(
                f"{name} in {path} is in {depth}, but {needs}: "
                f"{advice or 'change data.layout, or move the file'}"
            )
        found.append((name, dict(zip(levels, folders, strict=True))))
    if not found:
        raise InputError(f"{path} contains no images{_but(_skipped(tree))}")
    is_test, is_validation = split_roles([named.get("split", "") for _, named in found])
    entries = [
        Entry(
            name,
            label=named["class"],
            owner=named.get("owner", ""),
            is_test=bool(is_test[place]),
            group=named.get("group", ""),
            is_validation=is_validation is not None and bool(is_validation[place]),
        )
        for place, (name, named) in enumerate(found)
    ]
    source = source_of_files(
        path.stem,
        entries,
        tree,
        class_names=sorted({entry.label for entry in entries}),
        owner_names=sorted({entry.owner for entry in entries}) if "owner" in levels else (),
        has_test="split" in levels,
    )
    notes = [*_skipped(tree), *_empty(tree, levels, source)]
    notes += [*_alike("classes", source.class_names), *_alike("owners", source.owner_names)]
    return replace(source, notes=tuple(notes))


def _but(notes: Sequence[str]) -> str:
    return f" ({notes[0]})" if notes else ""


def _skipped(tree: FileTree) -> list[str]:
    """A note on skipped files, by suffix."""
    found = tree.skipped()
    if not found:
        return []
    kinds = [f"{suffix} ({number:,})" for suffix, number in found.most_common()]
    note = f"skipped {count(found.total(), 'file')}: {some(kinds)}"
    if HEIC_SUFFIXES & found.keys() - IMAGE_SUFFIXES:
        note += "; `pip install 'pfedseq[heic]'` makes .heic readable"
    if DICOM_SUFFIXES & found.keys() - IMAGE_SUFFIXES:
        note += "; `pip install 'pfedseq[dicom]'` makes .dcm readable"
    return [note]


def _empty(tree: FileTree, levels: Sequence[str], source: Source) -> list[str]:
    """Notes on classes and owners whose folder has no images."""
    notes = []
    for level, plural, with_images in (
        ("class", "classes", source.class_names),
        ("owner", "owners", source.owner_names),
    ):
        if level not in levels:
            continue
        depth = levels.index(level)
        named = (PurePosixPath(folder).parts for folder in tree.folders())
        found = {parts[depth] for parts in named if len(parts) > depth}
        if empty := sorted(found - set(with_images)):
            which = level if len(empty) == 1 else plural
            notes.append(f"no images in the {which} {some(empty)}: left out")
    return notes


def _alike(plural: str, names: Iterable[str]) -> list[str]:
    """Notes on names that differ only in case, outer spaces or Unicode normalisation."""
    spellings: dict[str, list[str]] = {}
    for name in names:
        key = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        spellings.setdefault(key, []).append(name)
    return [
        f"the {plural} {' and '.join(map(repr, same))} are treated as different: rename the "
        f"folders if they are meant to be the same"
        for same in spellings.values()
        if len(same) > 1
    ]
