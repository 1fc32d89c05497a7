"""Files that are there whole or not at all."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pfedseq.errors import InputError, WriteError


def write_atomically(path: Path, content: bytes | str, private: bool = False) -> None:
    """Write under a temporary name beside `path`, flush to disk, then rename.

    A `private` file is its owner's alone from the first moment, in a folder that is, too, where
    that has to be made.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o777)
        if private:
            temporary.touch(mode=0o600)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as problem:
        if temporary.exists():  # not where its folder is a file
            temporary.unlink()
        raise WriteError(f"cannot write {path}: {problem.strerror}") from None


def append_line(path: Path, line: str) -> None:
    """Add one line to a file and flush it to disk; a crash may leave a part of the line."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        raise WriteError(f"cannot write {path}: {problem.strerror}") from None


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where there is no such file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise InputError(f"{path} is not readable: {problem}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} should hold a JSON object, not a {type(values).__name__}")
    return values


def sync_folder(folder: Path) -> None:
    """Flush to disk which names a folder holds, so that a rename outlives a power cut."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as problem:
        raise WriteError(f"cannot write {folder}: {problem.strerror}") from None
    finally:
        os.close(handle)


def remove_temporaries(folder: Path) -> None:
    """Remove what processes that were killed in the middle of `write_atomically` left behind."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


@contextmanager
def refusing_company(folder: Path) -> Iterator[None]:
    """Work on a folder alone: while one process does, another one is refused."""
    if os.name != "posix":  # on Windows two processes are on their own
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"another process is working on {folder}: wait for it, or stop it first"
            ) from None
        except OSError:
            pass  # a file system that cannot lock folders, such as some network drives
        yield
    finally:
        os.close(handle)


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
