"""Tiny-ImageNet: 200 classes of 500 training and 50 validation images, 64×64.

The test images have no public labels, so, as in the paper, the data set is the 110,000 training and
validation images. Classes and files are in the order of their names, as `ImageFolder` has them.
"""

from pathlib import PurePosixPath

from pfedseq.data.file_tree import FileTree
from pfedseq.data.location import Location
from pfedseq.data.source import Entry, Source, compare_with_full, source_of_files
from pfedseq.data.tabular import source_of_table
from pfedseq.errors import InputError

_NUM_CLASSES = 200
_IMAGES_PER_CLASS = 550


def open_tiny_imagenet(location: Location) -> Source:
    """Training images, then the labelled validation images."""
    table = location.table()
    if table is not None:
        source = source_of_table("tiny_imagenet", table)
        _check_classes(len(source.class_names), str(location))
    else:
        path = location.folder_or_archive("tiny-imagenet-200.zip or its folder")
        source = _open_tree(FileTree(path))
    full = [_IMAGES_PER_CLASS] * _NUM_CLASSES
    return compare_with_full(source, full, by="class", where=str(location))


def _open_tree(tree: FileTree) -> Source:
    root = tree.below("train/")
    wnids = sorted(tree.read(f"{root}wnids.txt").decode().split())
    _check_classes(len(wnids), f"{root}wnids.txt in {tree.path}")
    known = set(wnids)
    train = []
    for name in tree.images():
        if name.startswith(f"{root}train/"):
            wnid = PurePosixPath(name.removeprefix(f"{root}train/")).parts[0]
            if wnid not in known:
                raise InputError(f"{name} in {tree.path} is of the class {wnid}, not in wnids.txt")
            train.append(Entry(name, label=wnid))
    validation = _validation_entries(tree, f"{root}val/", known)
    return source_of_files(
        "tiny_imagenet", [*train, *validation], tree, class_names=wnids, has_test=True
    )


def _validation_entries(tree: FileTree, folder: str, known: set[str]) -> list[Entry]:
    """Each line of val_annotations.txt: file, class, and a bounding box that is not needed."""
    where = f"{folder}val_annotations.txt in {tree.path}"
    text = tree.read(f"{folder}val_annotations.txt").decode()
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        file, _, rest = line.partition("\t")
        wnid = rest.split("\t")[0]
        if wnid not in known:
            raise InputError(f"line {number} of {where} has the class {wnid!r}, not in wnids.txt")
        member = f"{folder}images/{file}"
        if member not in tree:
            raise InputError(f"line {number} of {where} names {file}, which is not there")
        entries.append(Entry(member, label=wnid, is_test=True))
    return sorted(entries, key=lambda entry: entry.member)


def _check_classes(found: int, where: str) -> None:
    if found != _NUM_CLASSES:
        raise InputError(f"{where} names {found} classes, but Tiny-ImageNet has {_NUM_CLASSES}")
