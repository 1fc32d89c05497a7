"""Images in a local folder of Hugging Face parquet files, read row group by row group."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pfedseq.data.file_tree import walk_files
from pfedseq.data.source import Block, RawImage, block_ranges
from pfedseq.errors import InputError


@dataclass(frozen=True)
class TableColumn:
    """Classes or owners as numbers, with their names if the file has any."""

    values: NDArray[Any]
    """(n,) integers or strings."""
    names: tuple[str, ...] | None


@dataclass(frozen=True)
class Table:
    """Rows of several splits in sequence, from parquet files or the hub.

    `columns` has all columns except the images; `splits` names the split of each row.
    """

    where: str
    columns: Mapping[str, TableColumn]
    splits: NDArray[np.str_]
    image_columns: tuple[str, ...]
    blocks: Callable[[str, NDArray[np.int64]], tuple[Block, ...]]
    """(image column, ascending rows) to blocks of those rows' images."""


def find_parquet(folder: Path) -> list[Path]:
    """The parquet files below a folder, training files first, then by name."""
    if folder.is_file() and folder.suffix == ".parquet":
        return [folder]
    files = [path for path in walk_files(folder) if path.suffix == ".parquet"]
    return sorted(files, key=lambda path: (split_name(path) != "train", str(path)))


def split_name(path: Path) -> str:
    """'train' of train-00000-of-00001.parquet, as the hub names its files."""
    return path.stem.split("-")[0]


def read_table(folder: Path) -> Table:
    """Open all parquet files of a folder; images stay on disk."""
    files = find_parquet(folder)
    if not files:
        raise InputError(f"{folder} contains no parquet files")
    parts = [_open(path) for path in files]
    schema = parts[0].schema_arrow
    for path, part in zip(files, parts, strict=True):
        if part.schema_arrow.names != schema.names:
            raise InputError(
                f"{path} has the columns {', '.join(part.schema_arrow.names)}, but {files[0]} has "
                f"{', '.join(schema.names)}: give the folder of one data set"
            )
    images = tuple(field.name for field in schema if _holds_images(field.type))
    plain = [field.name for field in schema if _is_plain(field.type)]
    names = _class_label_names(schema)
    tables = [_read_plain(path, part, plain) for path, part in zip(files, parts, strict=True)]
    joined = pa.concat_tables(tables)
    rows = [part.metadata.num_rows for part in parts]
    return Table(
        where=str(folder),
        columns={
            name: TableColumn(_to_numpy(joined[name], name, folder), names.get(name))
            for name in plain
        },
        splits=np.repeat([split_name(path) for path in files], rows),
        image_columns=images,
        blocks=partial(_blocks, files, parts),
    )


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, memory_map=True)
    except (pa.ArrowException, OSError) as fault:
        raise InputError(
            f"{path} is not a complete parquet file ({_first_line(fault)}): download it again"
        ) from fault


def _read_plain(path: Path, part: pq.ParquetFile, names: Sequence[str]) -> pa.Table:
    try:
        return part.read(columns=list(names)).replace_schema_metadata(None)
    except (pa.ArrowException, OSError) as fault:
        raise InputError(f"{path} is damaged ({_first_line(fault)}): download it again") from fault


def _holds_images(kind: pa.DataType) -> bool:
    """The hub stores an image as struct(bytes, path); plain binary is accepted as well."""
    if pa.types.is_struct(kind):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_plain(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
    )


def _class_label_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """The names of ClassLabel columns, which the hub's files carry as JSON metadata."""
    text = (schema.metadata or {}).get(b"huggingface")
    if text is None:
        return {}
    features = json.loads(text).get("info", {}).get("features", {})
    return {
        name: tuple(feature["names"])
        for name, feature in features.items()
        if isinstance(feature, dict) and isinstance(feature.get("names"), list)
    }


def _to_numpy(column: pa.ChunkedArray, name: str, folder: Path) -> NDArray[Any]:
    if column.null_count:
        raise InputError(f"column {name} of {folder} is empty in {column.null_count} rows")
    values: NDArray[Any] = column.to_numpy()
    return values.astype(np.str_) if values.dtype == object else values


def _blocks(
    files: Sequence[Path],
    parts: Sequence[pq.ParquetFile],
    column: str,
    rows: NDArray[np.int64],
) -> tuple[Block, ...]:
    """Blocks never cross a row group, the smallest unit that parquet can read."""
    # Neighbouring blocks share a row group: keep the last few decoded groups.
    load = lru_cache(maxsize=8)(partial(_load_group, column))
    blocks = []
    first = 0
    for path, part in zip(files, parts, strict=True):
        for group in range(part.metadata.num_row_groups):
            count = part.metadata.row_group(group).num_rows
            start, stop = np.searchsorted(rows, [first, first + count])
            inside = rows[start:stop] - first
            blocks += [
                Block(b - a, partial(_read_rows, load, path, group, inside[a:b]))
                for a, b in block_ranges(len(inside))
            ]
            first += count
    return tuple(blocks)


def _load_group(column: str, path: Path, group: int) -> pa.ChunkedArray:
    try:
        # A separate handle: one ParquetFile must not be read by two threads.
        with pq.ParquetFile(path) as file:
            return file.read_row_group(group, columns=[column])[column]
    except (pa.ArrowException, OSError) as fault:
        raise InputError(f"{path} is damaged ({_first_line(fault)}): download it again") from fault


def _read_rows(
    load: Callable[[Path, int], pa.ChunkedArray], path: Path, group: int, rows: NDArray[np.int64]
) -> Iterator[RawImage]:
    column = load(path, group)
    for row in rows.tolist():
        value = column[row].as_py()
        content = value.get("bytes") if isinstance(value, dict) else value
        yield image_of_row(content, f"image {row} of row group {group} in {path}")


def image_of_row(content: Any, where: str) -> RawImage:
    """Check that a row contains an image's bytes (it may hold only a path, or nothing)."""
    if not isinstance(content, bytes):
        return where, InputError(f"{where} contains no image bytes")
    return where, content


def _first_line(fault: Exception) -> str:
    return str(fault).splitlines()[0].rstrip(".")
