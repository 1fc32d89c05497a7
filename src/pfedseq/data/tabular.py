"""Builds a `Source` from the rows of a table (parquet files or a hub data set)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pfedseq.data.parquet import Table, TableColumn
from pfedseq.data.source import Source, number_groups, split_roles
from pfedseq.errors import InputError

LABEL_COLUMNS = ("label", "labels", "fine_label", "class")


def source_of_table(
    name: str,
    table: Table,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    owner_column: str | None = None,
    group_column: str | None = None,
    class_names: Sequence[str] | None = None,
    only_classes: Sequence[str] | None = None,
    known_owners: Sequence[str] | None = None,
) -> Source:
    """The labelled images of a table.

    `class_names` are the data set's published names, used where the files carry none;
    `only_classes` keeps the rows of those classes and numbers them in that order; `known_owners`
    numbers the owners in its order, independent of the file's, and refuses others.
    """
    image_column = _choose(table, image_column, table.image_columns, "image")
    label_column = _choose(
        table, label_column, [c for c in LABEL_COLUMNS if c in table.columns], "label"
    )
    labels, names = _numbered(table, label_column, class_names)
    rows = np.arange(len(labels))
    if only_classes is not None:
        labels, names = _renumbered(table, labels, names, only_classes), tuple(only_classes)
        rows = np.flatnonzero(labels >= 0)
        labels = labels[rows]
    owners: NDArray[np.int64] | None = None
    owner_names: tuple[str, ...] = ()
    if owner_column is not None:
        _choose(table, owner_column, [], "owner")
        owners, owner_names = _numbered(table, owner_column, None)
        if known_owners is not None:
            owners = _renumbered(table, owners, owner_names, known_owners)
            owner_names = tuple(known_owners)
        owners = owners[rows]
        if (owners < 0).any():
            raise InputError(
                f"column {owner_column} of {table.where} may only have the values "
                f"{', '.join(owner_names)}"
            )
    groups: NDArray[np.int64] | None = None
    if group_column is not None:
        _choose(table, group_column, [], "group")
        of_owner = np.zeros(len(rows)) if owners is None else owners
        named = table.columns[group_column].values[rows].astype(np.str_)
        groups = number_groups(
            list(zip(of_owner.astype(np.str_).tolist(), named.tolist(), strict=True))
        )
    is_test, is_validation = split_roles(table.splits[rows].tolist())
    return Source(
        name=name,
        labels=labels,
        class_names=names,
        owners=owners,
        owner_names=owner_names,
        is_test=is_test if is_test.any() else None,
        groups=groups,
        is_validation=is_validation,
        blocks=table.blocks(image_column, rows),
    )


def _choose(table: Table, wanted: str | None, found: Sequence[str], role: str) -> str:
    """The column named in the config, or the only candidate."""
    known = (*table.image_columns, *table.columns)
    if wanted is not None:
        if wanted not in known or (role == "image") != (wanted in table.image_columns):
            raise InputError(
                f"{table.where} has no {role} column {wanted!r}: its columns are {', '.join(known)}"
            )
        return wanted
    if not found:
        raise InputError(
            f"{table.where} has no column that looks like the {role}: name one of "
            f"{', '.join(known)} as data.{role}_column"
        )
    if role == "image" and len(found) > 1:
        raise InputError(
            f"{table.where} has several image columns ({', '.join(found)}): name one as "
            "data.image_column"
        )
    return found[0]


def _numbered(
    table: Table, name: str, published: Sequence[str] | None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """A column as numbers 0 ... n - 1 and their names."""
    column: TableColumn = table.columns[name]
    if column.values.dtype.kind == "U":
        known = tuple(published or np.unique(column.values).tolist())
        strange = np.flatnonzero(~np.isin(column.values, known))
        if len(strange):
            raise InputError(
                f"row {strange[0]} of {table.where} has the unknown {name} "
                f"{str(column.values[strange[0]])!r}"
            )
        order = np.argsort(known)
        return order[np.searchsorted(known, column.values, sorter=order)], known
    names = column.names or published
    if names is None:
        names = [str(number) for number in range(int(column.values.max(initial=0)) + 1)]
    if published is not None and len(names) != len(published):
        raise InputError(
            f"{table.where} names {len(names)} values of {name}, but there should be "
            f"{len(published)}"
        )
    wrong = np.flatnonzero((column.values < 0) | (column.values >= len(names)))
    if len(wrong):
        raise InputError(
            f"row {wrong[0]} of {table.where} has the {name} {column.values[wrong[0]]}, which is "
            f"not between 0 and {len(names) - 1}"
        )
    return column.values.astype(np.int64), tuple(names)


def _renumbered(
    table: Table, numbers: NDArray[np.int64], names: Sequence[str], wanted: Sequence[str]
) -> NDArray[np.int64]:
    """The same names as places in `wanted`, and -1 for those that are not in it."""
    spelled = [name.lower().replace(" ", "_") for name in names]
    missing = [name for name in wanted if name not in spelled]
    if missing:
        raise InputError(f"{table.where} has no {missing[0]!r} among {', '.join(names[:8])}, …")
    place = {name: number for number, name in enumerate(wanted)}
    return np.array([place.get(name, -1) for name in spelled], dtype=np.int64)[numbers]
