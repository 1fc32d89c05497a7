"""Resolve `data.source`: a path on this machine, or a data set of the hub."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from pfedseq.data.file_tree import IMAGE_SUFFIXES, walk
from pfedseq.data.hub import hub_table
from pfedseq.data.parquet import Table, find_parquet, read_table
from pfedseq.errors import InputError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")


@dataclass(frozen=True)
class Location:
    """Either a path that exists, or a hub id."""

    path: Path | None
    hub_id: str | None

    def __str__(self) -> str:
        return str(self.path or self.hub_id)

    def table(self) -> Table | None:
        """The rows, if this is a hub data set or holds parquet files."""
        if self.path is None:
            assert self.hub_id is not None
            return hub_table(self.hub_id)
        if self.path.suffix == ".parquet" or (self.path.is_dir() and find_parquet(self.path)):
            return read_table(self.path)
        return None

    def folder_or_archive(self, expected: str) -> Path:
        """The path of a data set made of files; `expected` describes it in the error message."""
        if self.path is None:
            raise InputError(f"there is no file or folder {self.hub_id}: expected {expected}")
        return self.path

    def fingerprint(self, *, every_image: bool = False) -> str:
        """Changes when the source does; computed from names, sizes and times of its files.

        For images, only the folders' times are checked, which reveals added and removed files;
        `every_image` checks each file.
        """
        if self.path is None:
            return f"hub:{self.hub_id}"
        facts = [_facts(self.path, self.path)]
        if self.path.is_dir():
            for place, files in walk(self.path):
                seen = [f for f in files if every_image or f.suffix.lower() not in IMAGE_SUFFIXES]
                if place != self.path:
                    facts.append(_facts(self.path, place))
                facts += [_facts(self.path, path) for path in seen]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _facts(root: Path, path: Path) -> tuple[str, int, int]:
    try:
        seen = path.stat()
    except OSError:  # a dangling or circular link; reading it raises the error
        return path.relative_to(root).as_posix(), -1, 0
    size = seen.st_size if path.is_file() else 0
    return path.relative_to(root).as_posix(), size, seen.st_mtime_ns


def locate(source: str, said_with: str = "data.source") -> Location:
    """Decide whether a source is a path or a hub id; an existing path takes precedence.

    `said_with` is the option or config key that the user set, for messages.
    """
    path = Path(source).expanduser()
    if path.exists():
        return Location(path.resolve(), None)
    if _HUB_ID.fullmatch(source) and not source.startswith("."):
        return Location(None, source)
    raise InputError(f"there is no file or folder {source}: check {said_with}")
