"""Texts that a person names: themselves, in files, or in folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pfedseq.errors import InputError
from pfedseq.workloads.kinds import Found

MOST_SHOWN = 60
"""Characters of a text that stand for it in a table."""


def find_texts(named: Sequence[str]) -> list[Found]:
    """Texts themselves, .txt files, and folders of them."""
    found: list[Found] = []
    for argument in named:
        path = Path(argument).expanduser()
        if _exists(path):
            inside = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
            if not inside:
                raise InputError(f"{path} has no .txt files in it")
            found += [Found(str(file), file) for file in inside]
        elif argument.endswith(".txt") and len(argument.split()) == 1:
            raise InputError(f"there is no file {argument}")
        else:
            shown = " ".join(argument.split())
            short = shown if len(shown) <= MOST_SHOWN else shown[: MOST_SHOWN - 1] + "…"
            found.append(Found(short, argument))
    return found


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a text may be longer than a file's name can be
        return False
