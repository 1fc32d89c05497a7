"""PACS (Li et al. 2017): 9,991 images of seven classes in four domains."""

from pathlib import PurePosixPath

from pfedseq.data.file_tree import FileTree
from pfedseq.data.location import Location
from pfedseq.data.source import Entry, Source, compare_with_full, source_of_files
from pfedseq.data.tabular import source_of_table
from pfedseq.errors import InputError

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
SIZES = (2_048, 2_344, 1_670, 3_929)


def open_pacs(location: Location) -> Source:
    """The four domains, from `<domain>/<class>/*.jpg` in a folder or zip, or from parquet."""
    table = location.table()
    if table is not None:
        source = source_of_table(
            "pacs",
            table,
            label_column="label",
            owner_column="domain",
            only_classes=CLASSES,
            known_owners=DOMAINS,
        )
        return compare_with_full(source, SIZES, by="owner", where=str(location))
    path = location.folder_or_archive("PACS.zip or its folder")
    tree = FileTree(path)
    entries = []
    for name in tree.images():
        parts = PurePosixPath(name).parts
        if len(parts) < 3 or parts[-3] not in DOMAINS:
            continue
        if parts[-2] not in CLASSES:
            raise InputError(
                f"{name} in {path} has the class {parts[-2]!r}, which PACS does not have"
            )
        entries.append(Entry(name, label=parts[-2], owner=parts[-3]))
    found = {entry.owner for entry in entries}
    missing = [domain for domain in DOMAINS if domain not in found]
    if missing:
        raise InputError(
            f"{path} has no images of PACS's domain {missing[0]}: expected folders such as "
            f"{missing[0]}/{CLASSES[0]}"
        )
    source = source_of_files("pacs", entries, tree, class_names=CLASSES, owner_names=DOMAINS)
    return compare_with_full(source, SIZES, by="owner", where=path)
