"""The paper's numbers, from paper.toml, each with its source."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("paper.toml")


@dataclass(frozen=True)
class Published:
    """A number of the paper, with its standard deviation over seeds if given."""

    mean: float
    std: float | None = None

    @classmethod
    def read(cls, values: list[float]) -> Published:
        """From [mean] or [mean, std]."""
        return cls(*values)


def data_set_title(name: str) -> str:
    """As the paper's tables write it; other data sets keep their names."""
    title: str = _paper()["data_sets"].get(name, name)
    return title


def groups() -> list[tuple[str, Sequence[str]]]:
    """The methods in the order of the paper's Table 1, by its groups; the first has no title."""
    return [(group["title"], group["methods"]) for group in _paper()["groups"]]


def source(experiment: str) -> str:
    """Where the paper shows it."""
    text: str = _paper()[experiment]["source"]
    return text


def statement(experiment: str) -> str | None:
    """The paper's text about a figure without printed numbers."""
    text: str | None = _paper()[experiment].get("statement")
    return text


def published(experiment: str, row: str, data_set: str | None) -> Published | None:
    """The paper's number for a row and one of its data sets, or None where it has none."""
    values = _paper()[experiment].get("rows", {}).get(row, {}).get(data_set)
    return None if values is None else Published.read(values)


def swept_values(experiment: str) -> list[int]:
    """The values over which the paper varied L or W."""
    values: list[int] = _paper()[experiment]["values"]
    return values


@lru_cache(maxsize=1)
def _paper() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
