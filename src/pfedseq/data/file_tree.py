"""Uniform access to files in a folder, a zip or tar archive, or a folder of zip archives."""

import bz2
import gzip
import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import IO

from PIL import features

from pfedseq.data import dicom
from pfedseq.errors import InputError

try:
    from pillow_heif import register_heif_opener
except ImportError:  # the extra `heic` is not installed
    register_heif_opener = None

HEIC_SUFFIXES = frozenset({".heic", ".heif"})
_COMMON_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".webp", ".bmp")
_FURTHER_SUFFIXES = (".tif", ".tiff", ".jp2", ".ppm", ".pgm", ".pbm", ".pnm")
IMAGE_SUFFIXES = frozenset({*_COMMON_SUFFIXES, *_FURTHER_SUFFIXES})
"""Suffixes of images; .avif, .heic and .dcm only if this installation can read them."""
if find_spec("pydicom"):
    IMAGE_SUFFIXES |= dicom.SUFFIXES
if features.check("avif"):
    IMAGE_SUFFIXES |= {".avif"}
if register_heif_opener is not None:
    register_heif_opener()
    IMAGE_SUFFIXES |= HEIC_SUFFIXES


class FileTree:
    """The files under a folder or in an archive, by relative name with forward slashes.

    With `open_zips`, the zip archives directly inside a folder are treated as if they had been
    unpacked there: this is how Omniglot and DomainNet are published. Reading is thread-safe.
    """

    def __init__(self, path: Path, *, open_zips: bool = False) -> None:
        self.path = path
        self._files: dict[str, Path] = {}
        self._zipped: dict[str, tuple[Path, str]] = {}
        self._tar: _Tar | None = None
        self._folders: set[str] = set()
        self._handles = threading.local()
        if path.is_file():
            if _looks_like_tar(path):
                self._tar = _Tar(path)
            else:
                self._add_zip(path)
            return
        if not path.is_dir():
            raise InputError(f"there is no file or folder {path}")
        for place, files in walk(path):
            self._folders.add(place.relative_to(path).as_posix())
            for file in files:
                if open_zips and place == path and file.suffix.lower() == ".zip":
                    self._add_zip(file)
                else:
                    self._files[file.relative_to(path).as_posix()] = file

    def __contains__(self, name: str) -> bool:
        return (
            name in self._files
            or name in self._zipped
            or (self._tar is not None and name in self._tar.members)
        )

    def names(self) -> list[str]:
        """All files, sorted by name, so that the order does not depend on disk or archive."""
        return sorted({*self._files, *self._zipped, *(self._tar.members if self._tar else ())})

    def images(self) -> list[str]:
        """The files with an image suffix, sorted, without hidden files and macOS copies."""
        return [name for name in self.names() if _is_image(name) and not _is_hidden(name)]

    def skipped(self) -> Counter[str]:
        """Number of non-image files by suffix, without hidden files."""
        others = (name for name in self.names() if not _is_image(name) and not _is_hidden(name))
        return Counter(PurePosixPath(name).suffix.lower() or "no suffix" for name in others)

    def folders(self) -> list[str]:
        """All folders, including empty ones, sorted."""
        around = {str(parent) for name in self.names() for parent in PurePosixPath(name).parents}
        return sorted(f for f in {*self._folders, *around} - {"."} if not _is_hidden(f))

    def below(self, folder: str) -> str:
        """The prefix, '' or 'a/b/', under which `folder` (such as 'train/') is found.

        Archives often contain a top-level folder, and users unpack them into others.
        """
        prefixes = {
            name[: name.index(f"/{folder}") + 1] if not name.startswith(folder) else ""
            for name in self.names()
            if name.startswith(folder) or f"/{folder}" in name
        }
        if not prefixes:
            raise InputError(f"{self.path} does not contain {folder.rstrip('/')}")
        return min(prefixes, key=len)

    def describe(self, name: str) -> str:
        """Where a file is, for messages."""
        if name in self._zipped:
            return f"{name} in {self._zipped[name][0]}"
        return f"{name} in {self.path}" if self._tar else str(self.path / name)

    def read(self, name: str) -> bytes:
        """The bytes of one file."""
        if name not in self:
            raise InputError(f"{self.path} does not contain {name}")
        if name in self._files:
            try:
                return self._files[name].read_bytes()
            except OSError as fault:
                raise InputError(f"cannot read {self._files[name]}: {fault.strerror}") from fault
        if self._tar is not None:
            return self._tar.read(name)
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
        except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as fault:
            raise InputError(
                f"{archive} is not a complete zip archive ({fault}): download it again"
            ) from fault
        for member in members:
            _refuse_outside(member.filename, archive)
            if member.is_dir():
                self._folders.add(member.filename.rstrip("/"))
                continue
            if stat.S_ISLNK(member.external_attr >> 16):
                raise InputError(f"{archive} is refused: it contains the link {member.filename}")
            self._zipped[member.filename] = (archive, member.filename)

    def _zip(self, archive: Path) -> zipfile.ZipFile:
        """One handle per thread: a shared one would make readers wait for each other."""
        handles: dict[Path, zipfile.ZipFile] | None = getattr(self._handles, "open", None)
        if handles is None:
            handles = self._handles.open = {}
        if archive not in handles:
            handles[archive] = zipfile.ZipFile(archive)
        return handles[archive]


class _Tar:
    """The files of a tar archive, each found by its offset.

    A plain archive is read in place. A compressed one can only be read from its beginning, so
    it is first decompressed to an unnamed temporary file.
    """

    def __init__(self, path: Path) -> None:
        self.members: dict[str, tuple[int, int]] = {}
        """Offset and size by name."""
        self._path = path
        self._lock = threading.Lock()
        try:
            self._content = _decompressed(path)
            with tarfile.open(fileobj=self._content, mode="r:") as archive:
                for member in archive:
                    self._add(member)
            self._check_end()
        except InputError:
            raise
        except Exception as fault:  # tar, gzip, zlib and EOF errors have no common base
            raise InputError(
                f"{path} is not a complete tar archive ({fault}): download it again"
            ) from fault

    def _add(self, member: tarfile.TarInfo) -> None:
        name = member.name.removeprefix("./")
        if member.isdir():
            return
        _refuse_outside(name, self._path)
        if not member.isreg():
            raise InputError(f"{self._path} is refused: it contains the link {name}")
        self.members[name] = (member.offset_data, member.size)

    def _check_end(self) -> None:
        """Refuse an archive without its final empty block, which tarfile does not check."""
        last = max((sum(place) for place in self.members.values()), default=0)
        self._content.seek(-(-last // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)
        if not self._content.read(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("its end is missing")

    def read(self, name: str) -> bytes:
        """The bytes of one file."""
        offset, size = self.members[name]
        with self._lock:
            self._content.seek(offset)
            content = self._content.read(size)
        if len(content) != size:
            raise InputError(f"{name} in {self._path} is cut off: download the archive again")
        return content


def _looks_like_tar(path: Path) -> bool:
    return ".tar" in path.suffixes[-2:] or path.suffix in (".tgz", ".txz", ".tbz2")


def _decompressed(path: Path) -> IO[bytes]:
    """The content of a possibly compressed file, opened for random access."""
    content = path.open("rb")
    start = content.read(6)
    content.seek(0)
    for magic, module in ((b"\x1f\x8b", gzip), (b"BZh", bz2), (b"\xfd7zXZ\0", lzma)):
        if start.startswith(magic):
            plain = tempfile.TemporaryFile()  # noqa: SIM115
            with content, module.open(content) as packed:
                shutil.copyfileobj(packed, plain)
            plain.seek(0)
            return plain
    return content


def _is_image(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)


def walk_files(folder: Path) -> Iterator[Path]:
    """All files below a folder except hidden ones; links are followed."""
    for _, files in walk(folder):
        yield from files


def walk(folder: Path, _around: tuple[str, ...] = ()) -> Iterator[tuple[Path, list[Path]]]:
    """(folder, its files) for a folder and all folders below, sorted by name, without hidden ones.

    Links are followed; a link to one of its own parent folders is an error.
    """
    real = os.path.realpath(folder)
    if real in _around:
        raise InputError(f"{folder} is a link to its own parent folder {real}: remove the link")
    try:
        inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        subfolders = [path for path in inside if path.is_dir()]
    except OSError as fault:
        raise InputError(f"cannot read the folder {folder}: {fault.strerror}") from fault
    yield folder, [path for path in inside if path not in set(subfolders)]
    for subfolder in subfolders:
        yield from walk(subfolder, (*_around, real))


def _refuse_outside(name: str, archive: Path) -> None:
    """Refuse names that point outside the archive, although nothing is ever unpacked."""
    path = PurePosixPath(name.replace("\\", "/"))
    if not path.parts:
        raise InputError(f"{archive} is damaged: it contains a file without a name")
    if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
        raise InputError(f"{archive} is refused: its member {name} points outside the archive")
