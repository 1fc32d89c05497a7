"""Writes folders atomically."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

from pfedseq.errors import InputError


def write_whole(folder: Path, write: Callable[[Path], None]) -> None:
    """Write under a temporary name, then replace `folder`."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = Path(mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as problem:
        raise InputError(f"cannot write {folder}: {problem.strerror}") from None
    try:
        write(place)
        place.chmod(0o755)  # a temporary folder is private to its owner
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(place, folder)
    except OSError as problem:
        raise InputError(f"cannot write {folder}: {problem.strerror}") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
