"""Plug-ins: from entry points of installed packages, or from a single file.

A registry is a dict of named objects of one kind. Built-in objects are in it from the start. Those
of installed packages, under the registry's entry-point group, are added on the first request for a
name that is not built in. A file (`load_file`) adds what it defines of a registered kind. Only the
user's own command or config can name a file: nothing that a message or a results folder names is
executed.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

from pfedseq.errors import InputError


class Named(Protocol):
    """An object that a registry can hold."""

    @property
    def name(self) -> str:
        """The key in the registry."""


Thing = TypeVar("Thing", bound=Named)


@dataclass(frozen=True)
class Origin:
    """The origin of a plug-in."""

    place: str
    """A file, or a package and its version."""
    sha256: str = ""
    """The checksum of a file's content."""

    @property
    def code(self) -> str:
        """Identifies the code; independent of where a file is."""
        return self.sha256 or self.place


_registries: list[Registry[Any]] = []
_files: dict[Path, tuple[Origin, ModuleType]] = {}
_loading: list[Origin] = []


class Registry(MutableMapping[str, Thing]):
    """Objects of one kind by name, including plug-ins."""

    def __init__(self, noun: str, group: str, kind: type[Thing], built_in: Iterable[Thing]) -> None:
        self.noun, self.group, self.kind = noun, group, kind
        self._things: dict[str, Thing] = {thing.name: thing for thing in built_in}
        self.origins: dict[str, Origin] = {}
        """The origins of plug-ins."""
        self.broken: dict[str, str] = {}
        """Entry points that cannot be loaded, and why."""
        self._asked = False
        _registries.append(self)
        for origin, module in _files.values():  # loaded before this registry existed
            self.adopt(module, origin)

    def __getitem__(self, name: str) -> Thing:
        if name not in self._things:
            self._ask_packages()
        return self._things[name]

    def __setitem__(self, name: str, thing: Thing) -> None:
        self._things[name] = thing

    def __delitem__(self, name: str) -> None:
        del self._things[name]
        self.origins.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        self._ask_packages()
        return iter(self._things)

    def __len__(self) -> int:
        self._ask_packages()
        return len(self._things)

    def register(self, thing: Thing) -> None:
        """Register `thing` by its name; a reloaded file replaces its earlier definitions."""
        origin = _loading[-1] if _loading else None
        there = self._things.get(thing.name)
        if there is thing:
            return
        if there is not None:
            former = self.origins.get(thing.name)
            if origin is None or former is None or former.place != origin.place:
                raise InputError(
                    f"there is already a {self.noun} {thing.name!r}; choose another name"
                )
        self._things[thing.name] = thing
        if origin is not None:
            self.origins[thing.name] = origin

    def find(self, name: str) -> Thing:
        """The object of that name; an error suggests the nearest one."""
        if name in self:
            return self[name]
        if name in self.broken:
            raise InputError(self.broken[name])
        near = get_close_matches(name.lower(), list(self), n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]!r}?" if near else f": known are {', '.join(self)}"
        raise InputError(f"there is no {self.noun} {name!r}{hint}")

    def adopt(self, module: ModuleType, origin: Origin) -> int:
        """Register a file's objects of this kind; return how many the file itself defines."""
        with _defining(origin):
            for thing in vars(module).values():
                if isinstance(thing, self.kind):
                    self.register(thing)
        return sum(one == origin for one in self.origins.values())

    def _ask_packages(self) -> None:
        if self._asked:
            return
        self._asked = True
        for entry in entry_points(group=self.group):
            package = entry.dist
            origin = Origin(f"{package.name} {package.version}" if package else entry.value)
            try:
                with _defining(origin):
                    thing = entry.load()
                    if not isinstance(thing, self.kind):
                        raise TypeError(f"{entry.value} is no {self.kind.__name__}")
                    self.register(thing)
            except Exception as problem:  # a broken plug-in must not affect others
                self.broken[entry.name] = (
                    f"the {self.noun} {entry.name!r} of the installed package {origin.place} "
                    f"cannot be used: {_told(problem)}"
                )


def load_file(file: Path | str, sha256: str | None = None) -> Origin:
    """Execute a Python file once and register what it defines; again only if it has changed.

    With `sha256`, a file with another checksum is refused and not executed.
    """
    place = Path(file).expanduser().resolve()
    try:
        code = place.read_bytes()
    except OSError as problem:
        meant = next((o for o, _ in _files.values() if sha256 and o.sha256 == sha256), None)
        if meant is not None:  # it has moved, and --plugin gives its new path
            return meant
        raise InputError(
            f"cannot read the plug-in {place} ({problem.strerror}): restore it, or give its path "
            "with --plugin FILE"
        ) from None
    origin = Origin(str(place), hashlib.sha256(code).hexdigest())
    if sha256 is not None and origin.sha256 != sha256:
        raise InputError(
            f"the plug-in {place} has changed since the run was started (its sha256 was "
            f"{sha256[:12]}…, is {origin.sha256[:12]}…): restore the former, or start a new run"
        )
    if place in _files and _files[place][0] == origin:
        return origin
    module = _execute(place, code, origin)
    if not sum(registry.adopt(module, origin) for registry in _registries):
        kinds = ", ".join(sorted(registry.kind.__name__ for registry in _registries))
        raise InputError(f"the plug-in {place} defines nothing to register: none of {kinds}")
    _files[place] = (origin, module)
    return origin


def _execute(place: Path, code: bytes, origin: Origin) -> ModuleType:
    name = f"pfedseq_plugin_{place.stem}_{origin.sha256[:8]}"
    spec = spec_from_file_location(name, place)
    if spec is None:
        raise InputError(f"the plug-in {place} is not a Python file: its name must end in .py")
    module = module_from_spec(spec)
    sys.modules[name] = module  # pydantic resolves annotations there
    try:
        with _defining(origin):
            exec(compile(code, str(place), "exec"), vars(module))
    except InputError:
        del sys.modules[name]
        raise
    except Exception as problem:
        del sys.modules[name]
        raise InputError(f"the plug-in {place} cannot be loaded: {_told(problem)}") from problem
    return module


@contextmanager
def _defining(origin: Origin) -> Iterator[None]:
    """Attribute registrations in the block to `origin`."""
    _loading.append(origin)
    try:
        yield
    finally:
        _loading.pop()


def _told(problem: Exception) -> str:
    return (
        str(problem) if isinstance(problem, InputError) else f"{type(problem).__name__}: {problem}"
    )
