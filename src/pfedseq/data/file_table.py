"""A table of image files: a CSV or parquet file with a row for each image.

`file_name` is relative to the table's folder; `label` names the class, `site` the client, `group`
the patient or subject, and `split` the source's own split. The last three may be left out.
"""

import csv
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pfedseq.data.config import DataConfig
from pfedseq.data.location import Location
from pfedseq.data.source import Entry, Source, source_of_files, split_roles
from pfedseq.errors import InputError
from pfedseq.words import some

SUFFIXES = (".csv", ".tsv", ".parquet")


class ListedFiles:
    """Files by the names in a table, relative to its folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def describe(self, name: str) -> str:
        """Where a file is, for messages."""
        return str(self.root / Path(name).expanduser())

    def read(self, name: str) -> bytes:
        """The bytes of one file."""
        try:
            return (self.root / Path(name).expanduser()).read_bytes()
        except OSError as fault:
            raise InputError(f"cannot read {self.describe(name)}: {fault.strerror}") from fault


def open_file_table(config: DataConfig, location: Location) -> Source:
    """The images that a table lists, in its order."""
    path = location.folder_or_archive("a CSV or parquet file that lists images")
    rows = _rows(path)
    columns = {key: _column(path, rows, config, key) for key in ("file", "label", "owner", "group")}
    found = [
        {key: row.get(name, "") if name else "" for key, name in columns.items()} for row in rows
    ]
    for number, row in enumerate(found, start=1):
        lacking = [
            columns[key] for key in ("file", "label", "owner") if columns[key] and not row[key]
        ]
        if lacking:
            raise InputError(f"row {number} of {path} has no {lacking[0]}")
    has_splits = bool(rows) and "split" in rows[0]
    is_test, is_validation = split_roles([row.get("split", "") for row in rows])
    entries = [
        Entry(
            row["file"],
            label=row["label"],
            owner=row["owner"],
            is_test=bool(is_test[place]),
            group=row["group"],
            is_validation=is_validation is not None and bool(is_validation[place]),
        )
        for place, row in enumerate(found)
    ]
    return source_of_files(
        path.stem,
        entries,
        ListedFiles(path.parent),
        class_names=sorted({entry.label for entry in entries}),
        owner_names=sorted({entry.owner for entry in entries}) if columns["owner"] else (),
        has_test=has_splits,
    )


def fingerprint(config: DataConfig, location: Location) -> str:
    """Changes when the table or one of its files does; based on sizes and times."""
    path = location.folder_or_archive("a CSV or parquet file that lists images")
    rows = _rows(path)
    column = _column(path, rows, config, "file")
    facts: list[Any] = [location.fingerprint()]
    for row in rows:
        file = path.parent / Path(row[column or ""]).expanduser()
        seen = file.stat() if file.is_file() else None
        facts.append((str(file), seen and (seen.st_size, seen.st_mtime_ns)))
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _column(path: Path, rows: list[dict[str, str]], config: DataConfig, key: str) -> str | None:
    """The column named in the config or by convention; None for a missing optional one."""
    usual = {"file": "file_name", "label": "label", "owner": "site", "group": "group"}[key]
    option = "image_column" if key == "file" else f"{key}_column"
    chosen: str | None = getattr(config, option)
    present = list(rows[0]) if rows else []
    name = chosen or usual
    if name in present:
        return name
    if chosen is None and key in ("owner", "group"):
        return None
    raise InputError(
        f"{path} has no column {name!r}: its columns are {some(present, 12)}; name one as "
        f"data.{option}"
    )


def _rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table, all values as text without outer spaces."""
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        raise InputError(f"{path} is not a table: a .csv, .tsv or .parquet file is needed")
    try:
        rows = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    except (OSError, UnicodeDecodeError, csv.Error, pa.ArrowException) as fault:
        why = str(fault).splitlines()[0]
        raise InputError(f"{path} is not a readable table ({why})") from fault
    if not rows:
        raise InputError(f"{path} has no rows")
    return rows


def _csv(path: Path) -> list[dict[str, str]]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter=delimiter, restval="", strict=True)
        rows = [_as_text(row) for row in reader]
        if any(None in row for row in rows):
            raise csv.Error("a row has more values than there are columns")
    return rows


def _parquet(path: Path) -> list[dict[str, str]]:
    return [_as_text(row) for row in pq.read_table(path).to_pylist()]


def _as_text(row: Mapping[Any, Any]) -> dict[Any, str]:
    return {key: "" if value is None else str(value).strip() for key, value in row.items()}
