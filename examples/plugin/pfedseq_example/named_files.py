"""Images in one flat folder, named `OWNER_CLASS_ANYTHING.png`."""

from pfedseq.data.config import DataConfig
from pfedseq.data.file_tree import FileTree
from pfedseq.data.location import Location
from pfedseq.data.registry import DataSet
from pfedseq.data.source import Entry, Source, source_of_files
from pfedseq.errors import InputError


def open_named_files(config: DataConfig, location: Location) -> Source:
    """All images of the folder, with owner and class from their names."""
    tree = FileTree(location.folder_or_archive("the folder of images"))
    entries = []
    for member in tree.images():
        parts = member.rsplit("/", 1)[-1].split("_")
        if len(parts) < 3:
            raise InputError(f"{member} in {location} is not named OWNER_CLASS_ANYTHING")
        entries.append(Entry(member, label=parts[1], owner=parts[0]))
    return source_of_files(
        "named_files",
        entries,
        tree,
        class_names=sorted({entry.label for entry in entries}),
        owner_names=sorted({entry.owner for entry in entries}),
    )


DATA_SET = DataSet(
    name="named_files",
    summary="images in one folder, named OWNER_CLASS_ANYTHING",
    formats="folder, zip or tar",
    open=open_named_files,
    defaults={"partition": "owners"},
)
