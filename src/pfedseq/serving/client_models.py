"""Finds the personal models in a run, an export or a single PEFT folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfedseq.config import Config, read_config
from pfedseq.errors import InputError
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.peft_folder import CONFIG_FILE
from pfedseq.runs.folder import RunFolder
from pfedseq.words import as_number, short, some
from pfedseq.workloads.personal import PersonalModel, read_about


@dataclass(frozen=True)
class Place:
    """Location of one client's model."""

    client: str
    folder: Path


class ClientModels:
    """All clients' models of one method, loaded one by one on a shared backbone."""

    def __init__(self, path: Path, method: str | None, places: list[Place]) -> None:
        self.path, self.method, self.places = path, method, places
        self._shared: AdaptedModel | None = None

    @classmethod
    def open(cls, path: Path, method: str | None = None) -> ClientModels:
        """Find the models of `method`, by default a run's first."""
        if not path.is_dir():
            raise InputError(f"there is no folder {path}")
        if (path / CONFIG_FILE).exists():
            about = read_about(path)
            return cls(path, method or about.get("method"), [_place(path, about)])
        folder = path
        if RunFolder(path).config.exists():
            method = _method_of_run(path, read_config(RunFolder(path).config), method)
            folder = path / "adapters" / method
        found = [entry.parent for entry in sorted(folder.glob(f"*/{CONFIG_FILE}"))]
        if not found:
            raise InputError(
                f"{folder} has no personal models: name the folder of a finished run, an export "
                "or a PEFT adapter"
            )
        abouts = [read_about(entry) for entry in found]
        places = [_place(entry, about) for entry, about in zip(found, abouts, strict=True)]
        numbers = [about.get("number", len(found)) for about in abouts]
        order = sorted(range(len(found)), key=lambda place: (numbers[place], found[place]))
        return cls(path, method or abouts[0].get("method"), [places[place] for place in order])

    @property
    def names(self) -> list[str]:
        """The names of the clients, in order."""
        return [place.client for place in self.places]

    def find(self, client: str | None) -> int:
        """The index of a client given by name, folder name or number from 0."""
        if client is None:
            if len(self.places) == 1:
                return 0
            raise InputError(f"name one of the clients with --client: {some(self.names, 10)}")
        for known in (self.names, [place.folder.name for place in self.places]):
            if client in known:
                return known.index(client)
        if (number := as_number(client)) is not None and number < len(self.places):
            return number
        raise InputError(
            f"{self.path} has no client {short(client)!r}; it has {some(self.names, 10)}"
        )

    def load(self, index: int) -> PersonalModel:
        """The model of the client at an index; the first call loads the backbone."""
        loaded = PersonalModel.load(self.places[index].folder, self._shared)
        self._shared = loaded.model
        return loaded


def _place(folder: Path, about: Mapping[str, Any]) -> Place:
    return Place(str(about.get("client", folder.name)), folder)


def _method_of_run(path: Path, config: Config, method: str | None) -> str:
    """The requested method, or the run's first method with saved models."""
    there = {entry.name for entry in path.glob("adapters/*") if entry.is_dir()}
    if not there:
        raise InputError(
            f"{path} has no personal models yet: `pfedseq resume {path}` finishes the run"
        )
    if method is None:
        in_order = [name for name in config.run.methods if name in there]
        return in_order[0] if in_order else min(there)
    if method not in there:
        raise InputError(f"{path} has no models of {method!r}; it has {some(sorted(there))}")
    return method
