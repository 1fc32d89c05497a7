"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pfedseq.errors import InputError


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write under a temporary name beside `path`, flush to disk, then rename."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as problem:
        if temporary.exists():  # not where its folder is a file
            temporary.unlink()
        raise InputError(f"cannot write {path}: {problem.strerror}") from None


@contextmanager
def only_one_process(path: Path) -> Iterator[None]:
    """Let one process at a time work on `path`, by a lock beside it that dies with the process."""
    with _lock_file(path) as handle:
        if os.name == "posix":
            import fcntl  # not on Windows, where two processes are on their own

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def claim(path: Path) -> Iterator[bool]:
    """As `only_one_process`, but without waiting: whether `path` is ours to work on."""
    with _lock_file(path) as handle:
        ours = True
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                ours = False
        yield ours


def _lock_file(path: Path) -> IO[str]:
    """The lock beside `path`; it stays there, for a file that is removed can be locked twice."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_name(path.name + ".lock").open("w")
    except OSError as fault:
        raise InputError(f"cannot write to {path.parent}: {fault.strerror}") from fault
