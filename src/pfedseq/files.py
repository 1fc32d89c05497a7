"""Files that are there whole or not at all."""

import os
from pathlib import Path

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
        temporary.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {problem.strerror}") from None
