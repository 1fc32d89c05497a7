"""Labelled texts: a CSV file with a row for each, or a folder of .txt files."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pfedseq.data.config import DataConfig
from pfedseq.data.dataset import TextSet
from pfedseq.data.tabular import TEST_SPLITS
from pfedseq.errors import InputError


class Example(NamedTuple):
    """One text and what is said of it; '' where nothing is."""

    text: str
    label: str
    owner: str = ""
    split: str = ""


def load_texts(config: DataConfig) -> TextSet:
    """The texts of `data.source`: a .csv file, or a folder laid out as `data.layout` says."""
    path = Path(config.source or "").expanduser()
    if path.is_dir():
        found, levels = list(_in_folder(path, config.layout)), config.layout.split("/")
        has_owners, has_splits = "owner" in levels, "split" in levels
    elif path.is_file():
        found, has_owners = _in_csv(path, config)
        has_splits = False
    else:
        raise InputError(
            f"data.source = {str(path)!r} is neither a .csv file nor a folder of .txt files"
        )
    if not found:
        raise InputError(f"there are no texts in {path}")
    class_names = sorted({example.label for example in found})
    owner_names = sorted({example.owner for example in found}) if has_owners else []
    is_test = np.array([example.split.lower() in TEST_SPLITS for example in found])
    return TextSet(
        name=path.stem,
        texts=tuple(example.text for example in found),
        labels=np.array([class_names.index(example.label) for example in found]),
        class_names=tuple(class_names),
        owners=np.array([owner_names.index(e.owner) for e in found]) if has_owners else None,
        owner_names=tuple(owner_names),
        is_test=is_test if has_splits else None,
        fingerprint=hashlib.sha256(json.dumps([e.text for e in found]).encode()).hexdigest(),
    )


def _in_csv(path: Path, config: DataConfig) -> tuple[list[Example], bool]:
    """The rows, and whether they name clients."""
    text, label = config.text_column, config.label_column or "label"
    owner = config.owner_column or "client"
    found = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            columns = reader.fieldnames or []
            wanted = [text, label, *([config.owner_column] if config.owner_column else [])]
            for column in wanted:
                if column not in columns:
                    raise InputError(
                        f"{path} has no column {column!r}: its columns are {', '.join(columns)}; "
                        "name others with data.text_column, data.label_column, data.owner_column"
                    )
            has_owners = owner in columns
            for row in reader:
                values = [row[text], row[label], row[owner] if has_owners else "-"]
                if not all(value and value.strip() for value in values):
                    raise InputError(
                        f"the row that ends in line {reader.line_num} of {path} is not complete: "
                        "every row needs a text, a label and, if there is that column, a client"
                    )
                found.append(Example(*(value.strip() for value in values)))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise InputError(f"{path} is not a readable CSV file in UTF-8: {problem}") from None
    return found, has_owners


def _in_folder(path: Path, layout: str) -> Iterator[Example]:
    """Every .txt file, its labels told by the folders it lies in."""
    levels = layout.split("/")
    for file in sorted(path.rglob("*.txt")):
        folders = file.relative_to(path).parts[:-1]
        if len(folders) != len(levels):
            raise InputError(
                f"{file} lies {len(folders)} deep in {path}, but data.layout = {layout!r} needs "
                f"{len(levels)}: change data.layout, or move the file"
            )
        named = dict(zip(levels, folders, strict=True))
        try:
            text = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise InputError(f"{file} is not readable as UTF-8 text: {problem}") from None
        if not text:
            raise InputError(f"{file} is empty")
        yield Example(text, named["class"], named.get("owner", ""), named.get("split", ""))
