"""Labelled texts: a CSV file with a row for each, or a folder of .txt files."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pfedseq.data.config import DataConfig
from pfedseq.data.dataset import TextSet
from pfedseq.data.duplicates import checksums
from pfedseq.data.source import number_groups, split_roles
from pfedseq.errors import InputError


class Example(NamedTuple):
    """One text with its label, client, group and split; '' if unknown."""

    text: str
    label: str
    owner: str = ""
    split: str = ""
    group: str = ""


def load_texts(config: DataConfig) -> TextSet:
    """The texts of `data.source`: a .csv file, or a folder laid out as `data.layout` says."""
    path = Path(config.source or "").expanduser()
    if path.is_dir():
        found, levels = list(_in_folder(path, config.layout)), config.layout.split("/")
        has_owners, has_splits = "owner" in levels, "split" in levels
    elif path.is_file():
        found, has_owners, has_splits = _in_csv(path, config)
    else:
        raise InputError(
            f"data.source = {str(path)!r} is neither a .csv file nor a folder of .txt files"
        )
    if not found:
        raise InputError(f"{path} contains no texts")
    class_names = sorted({example.label for example in found})
    owner_names = sorted({example.owner for example in found}) if has_owners else []
    is_test, is_validation = split_roles([example.split for example in found])
    return TextSet(
        name=path.stem,
        texts=tuple(example.text for example in found),
        labels=np.array([class_names.index(example.label) for example in found]),
        class_names=tuple(class_names),
        owners=np.array([owner_names.index(e.owner) for e in found]) if has_owners else None,
        owner_names=tuple(owner_names),
        is_test=is_test if has_splits else None,
        fingerprint=hashlib.sha256(json.dumps([e.text for e in found]).encode()).hexdigest(),
        groups=number_groups([(example.owner, example.group) for example in found]),
        is_validation=is_validation,
        hashes=text_hashes([e.text for e in found]) if config.split == "stratified" else None,
    )


def text_hashes(texts: Sequence[str]) -> NDArray[np.uint64]:
    """(n, 2) checksums of the texts, and of the texts without case and spaces."""
    folded = ["".join(text.casefold().split()) for text in texts]
    columns = [checksums([text.encode() for text in column]) for column in (texts, folded)]
    return np.stack(columns, axis=1)


def _in_csv(path: Path, config: DataConfig) -> tuple[list[Example], bool, bool]:
    """The rows, whether they name clients, and whether they name splits."""
    text, label = config.text_column, config.label_column or "label"
    owner, group = config.owner_column or "client", config.group_column or "group"
    found = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            columns = reader.fieldnames or []
            chosen = [config.owner_column, config.group_column]
            wanted = [text, label, *(column for column in chosen if column)]
            for column in wanted:
                if column not in columns:
                    raise InputError(
                        f"{path} has no column {column!r}: its columns are {', '.join(columns)}; "
                        "name others with data.text_column, data.label_column, data.owner_column, "
                        "data.group_column"
                    )
            has_owners = owner in columns
            for row in reader:
                values = [row[text], row[label], row[owner] if has_owners else "-"]
                if not all(value and value.strip() for value in values):
                    raise InputError(
                        f"the row that ends in line {reader.line_num} of {path} is not complete: "
                        "every row needs a text, a label and, if there is that column, a client"
                    )
                more = [(row.get(column) or "").strip() for column in ("split", group)]
                found.append(Example(*(value.strip() for value in values), *more))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise InputError(f"{path} is not a readable CSV file in UTF-8: {problem}") from None
    return found, has_owners, "split" in columns


def _in_folder(path: Path, layout: str) -> Iterator[Example]:
    """Every .txt file, labelled by its folders."""
    levels = layout.split("/")
    for file in sorted(path.rglob("*.txt")):
        folders = file.relative_to(path).parts[:-1]
        if len(folders) != len(levels):
            raise InputError(
                f"{file} is {len(folders)} folders deep in {path}, but data.layout = {layout!r} "
                f"needs {len(levels)}: change data.layout, or move the file"
            )
        named = dict(zip(levels, folders, strict=True))
        try:
            text = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise InputError(f"{file} is not readable as UTF-8 text: {problem}") from None
        if not text:
            raise InputError(f"{file} is empty")
        yield Example(
            text, named["class"], *(named.get(level, "") for level in ("owner", "split", "group"))
        )
