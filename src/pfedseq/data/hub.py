"""Data sets from the Hugging Face hub, by id, through the optional `datasets` package."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedseq.data.parquet import Table, TableColumn, image_of_row
from pfedseq.data.source import Block, RawImage, block_ranges
from pfedseq.errors import InputError
from pfedseq.hub_access import DATA_REMEDY, without_waiting


def hub_table(hub_id: str) -> Table:
    """Fetch a data set (into the hub's cache) as a table.

    `hub_id` is `owner/name`, or `owner/name:config` for a data set of several configurations.
    """
    try:
        import datasets
    except ImportError:
        raise InputError(
            f"fetching {hub_id} needs the package datasets: run `pip install 'pfedseq[hub]'`, or "
            "give a local folder of its parquet files as data.source"
        ) from None
    name, _, configuration = hub_id.partition(":")
    try:
        with without_waiting():
            loaded = datasets.load_dataset(name, configuration or None)
    except Exception as fault:  # network, hub, format and cache errors have no common base
        raise InputError(
            f"cannot fetch {hub_id} from the hub ({str(fault).splitlines()[0]}): check the id, or, "
            f"if the hub cannot be reached, {DATA_REMEDY}"
        ) from fault
    return table_of_splits(hub_id, loaded)


def table_of_splits(where: str, splits: Mapping[str, Any]) -> Table:
    """A `datasets.DatasetDict` as a table, its training split first."""
    import datasets

    names = sorted(splits, key=lambda name: (name != "train", name))
    features = splits[names[0]].features
    images = tuple(name for name, kind in features.items() if _holds_images(kind))
    undecoded = {name: splits[name] for name in names}
    for column in images:
        if isinstance(features[column], datasets.Image):
            as_bytes = datasets.Image(decode=False)
            for name in names:
                undecoded[name] = undecoded[name].cast_column(column, as_bytes)
    columns = {}
    for column, kind in features.items():
        if isinstance(kind, datasets.ClassLabel) or _is_plain(kind):
            values = np.concatenate([np.asarray(undecoded[name][column]) for name in names])
            label_names = getattr(kind, "names", None)
            columns[column] = TableColumn(values, tuple(label_names) if label_names else None)
    sizes = [len(undecoded[name]) for name in names]
    return Table(
        where=where,
        columns=columns,
        splits=np.repeat(names, sizes),
        image_columns=images,
        blocks=partial(_blocks, where, undecoded),
    )


def _holds_images(kind: Any) -> bool:
    """Whether a column holds images; recognises struct(bytes, path) without the hub's metadata."""
    import datasets

    return isinstance(kind, datasets.Image) or (isinstance(kind, dict) and "bytes" in kind)


def _is_plain(kind: Any) -> bool:
    return getattr(kind, "dtype", "").startswith(("int", "uint", "string", "large_string"))


def _blocks(
    where: str, splits: Mapping[str, Any], column: str, rows: NDArray[np.int64]
) -> tuple[Block, ...]:
    blocks = []
    first = 0
    for name, split in splits.items():
        start, stop = np.searchsorted(rows, [first, first + len(split)])
        inside = rows[start:stop] - first
        images = split.select_columns([column])
        place = f"split {name} of {where}"
        blocks += [
            Block(b - a, partial(_read_rows, images, column, inside[a:b], place))
            for a, b in block_ranges(len(inside))
        ]
        first += len(split)
    return tuple(blocks)


def _read_rows(images: Any, column: str, rows: NDArray[np.int64], place: str) -> Iterator[RawImage]:
    for row, value in zip(rows.tolist(), images[rows.tolist()][column], strict=True):
        yield image_of_row(value["bytes"], f"image {row} in {place}")
