"""Texts that the user names: arguments, files or folders, and what is read from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pfedseq.errors import InputError
from pfedseq.workloads.kinds import Found
from pfedseq.workloads.personal import Raw

MOST_SHOWN = 60
"""Characters of a text shown in a table."""


def find_texts(named: Sequence[str]) -> list[Found]:
    """Texts from arguments, .txt files, and folders of .txt files."""
    found: list[Found] = []
    for argument in named:
        path = Path(argument).expanduser()
        if _exists(path):
            inside = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
            if not inside:
                raise InputError(f"{path} contains no .txt files")
            found += [Found(str(file), file) for file in inside]
        elif argument.endswith(".txt") and len(argument.split()) == 1:
            raise InputError(f"there is no file {argument}")
        else:
            shown = " ".join(argument.split())
            short = shown if len(shown) <= MOST_SHOWN else shown[: MOST_SHOWN - 1] + "…"
            found.append(Found(short, argument))
    return found


def text_of(raw: Raw) -> str:
    """A text, or a file's bytes in UTF-8; refuses empty ones."""
    name, content = raw
    if isinstance(content, bytes):
        try:
            content = content.decode("utf-8")
        except UnicodeDecodeError as problem:
            raise InputError(f"{name} is not readable as UTF-8 text: {problem}") from None
    if not isinstance(content, str) or not content.strip():
        raise InputError(f"{name} has no text in it")
    return content


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a text may be too long for a file name
        return False
