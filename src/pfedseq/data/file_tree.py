"""Files by name, whether they lie in a folder, in a zip archive, or in zip archives in a folder."""

import os
import stat
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from pfedseq.errors import InputError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"})


class FileTree:
    """The files under a folder or in a zip archive, by relative name with forward slashes.

    With `open_zips`, the zip archives directly inside a folder are seen as if they had been
    unpacked there: the way Omniglot and DomainNet are handed out. Reading is thread-safe.
    """

    def __init__(self, path: Path, *, open_zips: bool = False) -> None:
        self.path = path
        self._files: dict[str, Path] = {}
        self._zipped: dict[str, tuple[Path, str]] = {}
        self._handles = threading.local()
        if path.is_file():
            self._add_zip(path)
            return
        if not path.is_dir():
            raise InputError(f"there is no file or folder {path}")
        for file in walk_files(path):
            if open_zips and file.parent == path and file.suffix.lower() == ".zip":
                self._add_zip(file)
            else:
                self._files[file.relative_to(path).as_posix()] = file

    def __contains__(self, name: str) -> bool:
        return name in self._files or name in self._zipped

    def names(self) -> list[str]:
        """All files, sorted by name, so that the order never depends on disk or archive."""
        return sorted({*self._files, *self._zipped})

    def images(self) -> list[str]:
        """The files whose suffix is an image's, sorted; hidden files and macOS copies are not."""
        return [
            name
            for name in self.names()
            if PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES
            and not any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)
        ]

    def below(self, folder: str) -> str:
        """The prefix, '' or 'a/b/', under which `folder` (such as 'train/') is found.

        Archives wrap their content in a folder of their own, and users unpack them into others.
        """
        prefixes = {
            name[: name.index(f"/{folder}") + 1] if not name.startswith(folder) else ""
            for name in self.names()
            if name.startswith(folder) or f"/{folder}" in name
        }
        if not prefixes:
            raise InputError(f"{self.path} has no {folder.rstrip('/')} in it")
        return min(prefixes, key=len)

    def describe(self, name: str) -> str:
        """Where a file is, for messages."""
        if name in self._zipped:
            return f"{name} in {self._zipped[name][0]}"
        return str(self.path / name)

    def read(self, name: str) -> bytes:
        """The bytes of one file."""
        if name in self._files:
            try:
                return self._files[name].read_bytes()
            except OSError as fault:
                raise InputError(f"cannot read {self._files[name]}: {fault.strerror}") from fault
        if name not in self._zipped:
            raise InputError(f"{self.path} has no {name} in it")
        archive, member = self._zipped[name]
        try:
            return self._zip(archive).read(member)
        except Exception as fault:  # zlib, CRC, EOF and header errors have no common base
            raise InputError(
                f"{member} in {archive} is damaged ({fault}): download the archive again"
            ) from fault

    def _add_zip(self, archive: Path) -> None:
        try:
            members = self._zip(archive).infolist()
        except (zipfile.BadZipFile, OSError, EOFError) as fault:
            raise InputError(
                f"{archive} is not a whole zip archive ({fault}): download it again"
            ) from fault
        for member in members:
            if member.is_dir():
                continue
            _refuse_outside(member.filename, archive)
            if stat.S_ISLNK(member.external_attr >> 16):
                raise InputError(f"{archive} holds the link {member.filename}, which is refused")
            self._zipped[member.filename] = (archive, member.filename)

    def _zip(self, archive: Path) -> zipfile.ZipFile:
        """One handle per thread: a shared one would make readers wait for each other."""
        handles: dict[Path, zipfile.ZipFile] | None = getattr(self._handles, "open", None)
        if handles is None:
            handles = self._handles.open = {}
        if archive not in handles:
            handles[archive] = zipfile.ZipFile(archive)
        return handles[archive]


def walk_files(folder: Path) -> Iterator[Path]:
    """All files below a folder but hidden ones. Links are followed; a loop of links is not."""
    seen: set[str] = set()
    for place, subfolders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        yield from (Path(place, name) for name in files if not name.startswith("."))


def _refuse_outside(name: str, archive: Path) -> None:
    """Nothing is ever unpacked, but a name that leaves the archive shows that it is a forgery."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
        raise InputError(f"{archive} holds the path {name}, which leads out of it: refused")
