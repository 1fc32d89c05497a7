"""Atomic writes, and locks between processes."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pfedseq.errors import InputError, WriteError


def write_atomically(path: Path, content: bytes | str, private: bool = False) -> None:
    """Write under a temporary name beside `path`, flush to disk, then rename.

    A `private` file is readable by its owner only, from the start; so is its folder, if it has to
    be created.
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
        if temporary.exists():  # its folder may be a file
            temporary.unlink()
        raise WriteError(f"cannot write {path}: {problem.strerror}") from None


def append_line(path: Path, line: str) -> None:
    """Append a line to a file and flush it to disk; a crash may leave an incomplete line."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        raise WriteError(f"cannot write {path}: {problem.strerror}") from None


def read_object(path: Path) -> dict[str, Any] | None:
    """Read the JSON object in a file; None if the file does not exist."""
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
    """Flush a folder's entries to disk, so that a rename survives a power failure."""
    if os.name != "posix":  # Windows cannot open folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as problem:
        raise WriteError(f"cannot write {folder}: {problem.strerror}") from None
    finally:
        os.close(handle)


def remove_temporaries(folder: Path) -> None:
    """Remove the temporary files of processes that were killed during `write_atomically`."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


@contextmanager
def refusing_company(folder: Path) -> Iterator[None]:
    """Lock a folder for this process; refuse if another process holds it."""
    if os.name != "posix":  # no lock on Windows
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
    """Wait for the lock of `path`, which ends with the process that holds it."""
    with _lock_file(path) as handle:
        if os.name == "posix":
            import fcntl  # no lock on Windows

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Try to take the lock of `path` without waiting; yield whether it succeeded."""
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
    """The lock file of `path`; never removed, since a removed file can be locked twice."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_name(path.name + ".lock").open("w")
    except OSError as fault:
        raise InputError(f"cannot write to {path.parent}: {fault.strerror}") from fault
