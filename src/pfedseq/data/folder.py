"""Any folder (or zip archive) of images whose folder levels name the class, client and split."""

from pathlib import PurePosixPath

from pfedseq.data.file_tree import FileTree
from pfedseq.data.location import Location
from pfedseq.data.source import Entry, Source, source_of_files
from pfedseq.data.tabular import TEST_SPLITS
from pfedseq.errors import InputError


def open_folder(location: Location, layout: str) -> Source:
    """All images that lie as deep as `layout` says, such as `owner/class/*.jpg`.

    Images at another depth are an error: leaving them out silently would change the data set.
    """
    path = location.folder_or_archive("a folder of images")
    tree = FileTree(path)
    levels = layout.split("/")
    entries = []
    for name in tree.images():
        folders = PurePosixPath(name).parts[:-1]
        if len(folders) != len(levels):
            raise InputError(
                f"{name} in {path} lies in {len(folders)} folders, but data.layout = {layout!r} "
                f"needs {len(levels)}: change data.layout, or move the file"
            )
        named = dict(zip(levels, folders, strict=True))
        entries.append(
            Entry(
                name,
                label=named["class"],
                owner=named.get("owner", ""),
                is_test=named.get("split", "").lower() in TEST_SPLITS,
            )
        )
    if not entries:
        raise InputError(f"{path} has no images in it")
    return source_of_files(
        path.stem,
        entries,
        tree,
        class_names=sorted({entry.label for entry in entries}),
        owner_names=sorted({entry.owner for entry in entries}) if "owner" in levels else (),
        has_test="split" in levels,
    )
