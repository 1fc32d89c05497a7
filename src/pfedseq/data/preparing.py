"""Locates, updates and creates the store of prepared images for a config."""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pfedseq import words
from pfedseq.data import file_table
from pfedseq.data.config import DataConfig, default_store
from pfedseq.data.dataset import ImageSet
from pfedseq.data.image_store import (
    FORMAT,
    Report,
    is_finished,
    open_store,
    read_manifest,
    silent,
    store_hashes,
    verify_store,
)
from pfedseq.data.location import Location, locate
from pfedseq.data.registry import DATA_SETS
from pfedseq.data.store_writer import write_store
from pfedseq.errors import InputError

AUTOMATIC_BYTES = 2 * 10**9
"""A run creates a store up to this size automatically; a larger one must be requested."""


@dataclass(frozen=True)
class Prepared:
    """Summary of a finished store."""

    folder: Path
    num_images: int
    class_names: tuple[str, ...]
    owner_names: tuple[str, ...]
    num_bytes: int
    notes: tuple[str, ...]
    """Remarks for the user, for example that the source is only part of the data set."""


def prepare_data(
    config: DataConfig, report: Report = silent, said_with: str = "data.source"
) -> Prepared:
    """Read, verify and store the images of a data set; without a source, fetch it from the hub.

    An existing store is verified against its checksum and kept. `said_with` is the
    option or config key that set the source, for messages.
    """
    if config.name == "digits":
        raise InputError("digits need no preparation: they come with scikit-learn")
    if config.name == "text":
        raise InputError("texts need no preparation: a run reads them directly")
    hub_id = DATA_SETS[config.name].hub_id
    source = config.source or hub_id
    if source is None:
        raise InputError(
            f"{config.name} cannot be downloaded: give its location with --from "
            f"({DATA_SETS[config.name].formats})"
        )
    location = locate(source, said_with)
    folder = _store_folder(config, location)
    if _is_current(config, folder, location):
        report("verifying the checksum", 0, 1)
        verify_store(folder)
        report("verifying the checksum", 1, 1)
    else:
        _make(config, location, folder, None, report)
    return describe_store(folder)


def describe_store(folder: Path) -> Prepared:
    """The summary of a finished store."""
    manifest = read_manifest(folder)
    return Prepared(
        folder=folder,
        num_images=manifest["num_images"],
        class_names=tuple(manifest["class_names"]),
        owner_names=tuple(manifest["owner_names"]),
        num_bytes=(folder / "images.npy").stat().st_size,
        notes=tuple(manifest["notes"]),
    )


def prepared_images(config: DataConfig, report: Report = silent) -> ImageSet:
    """Open a data set's store, creating it first if the source is available and not too large."""
    if config.source is None:
        return _opened(config, _only_store(config), report)
    location = _locate_or_remember(config)
    folder = _store_folder(config, location)
    if not _is_current(config, folder, location):
        if location.path is None:
            raise InputError(
                f"there is no file or folder {config.source}; if it is a hub data set, "
                f"run {_prepare_command(config)} first"
            )
        _make(config, location, folder, AUTOMATIC_BYTES, report)
    return _opened(config, folder, report)


def _opened(config: DataConfig, folder: Path, report: Report) -> ImageSet:
    """A finished store, with the hashes that stratified splits need to detect copies."""
    images = replace(open_store(folder), window=config.window)
    if config.split != "stratified":
        return images
    return replace(images, hashes=store_hashes(folder, images.images, report))


def _make(
    config: DataConfig, location: Location, folder: Path, limit: int | None, report: Report
) -> None:
    opener = DATA_SETS[config.name].open
    assert opener is not None
    report("looking through the source", 0, 1)
    origin = {"source": str(location), "fingerprint": _fingerprint(config, location)}
    source = opener(config, location)
    if len(source.labels) == 0:
        raise InputError(f"{location} contains no images of {config.name}")
    report("looking through the source", 1, 1)
    num_bytes = len(source.labels) * 3 * config.side**2
    if limit is not None and num_bytes > limit:
        raise InputError(
            f"{_ask_to_prepare(config)} (it takes {words.size(num_bytes)}; a run prepares up to "
            f"{words.size(limit)} automatically)"
        )
    write_store(
        source,
        folder,
        config.side,
        origin,
        report,
        window=config.window,
        framing=config.framing,
        skip_unreadable=config.skip_unreadable,
    )


def _locate_or_remember(config: DataConfig) -> Location:
    """Locate the source; a source deleted after preparation still identifies its store."""
    assert config.source is not None
    path = Path(os.path.realpath(Path(config.source).expanduser()))
    remembered = Location(path, None)
    if not path.exists() and is_finished(_store_folder(config, remembered)):
        return remembered
    return locate(config.source)


def _fingerprint(config: DataConfig, location: Location) -> str:
    """The source's fingerprint; checks every file of the user's images, which may be edited."""
    if config.name == "table":
        return file_table.fingerprint(config, location)
    return location.fingerprint(every_image=config.name == "folder")


def _is_current(config: DataConfig, folder: Path, location: Location) -> bool:
    """Whether the store exists and its source is unchanged or gone."""
    if not is_finished(folder):
        return False
    if location.path is not None and not location.path.exists():
        return True
    return bool(read_manifest(folder).get("fingerprint") == _fingerprint(config, location))


def store_root(config: DataConfig) -> Path:
    """The folder of all prepared images of a config."""
    return (config.store or default_store()).expanduser() / "images"


def _store_folder(config: DataConfig, location: Location) -> Path:
    """The store's folder, one per data set, size, source and reading options."""
    reading = [str(location)]
    if config.name == "folder":
        reading.append(config.layout)
    if config.name in ("hub", "table"):
        reading += [str(config.image_column), str(config.label_column), str(config.owner_column)]
    if config.group_column is not None:
        reading.append(f"group {config.group_column}")
    if config.name in ("folder", "hub", "table"):
        reading.append(f"window {config.window}")
    reading += [f"{key} {value}" for key, value in config.framing.differences().items()]
    key = hashlib.sha256(json.dumps([FORMAT, *reading]).encode()).hexdigest()[:10]
    return store_root(config) / f"{config.name}-{config.side}px-{key}"


def _only_store(config: DataConfig) -> Path:
    """The one store of this data set and size, when the config does not name a source."""
    pattern = f"{config.name}-{config.side}px-*/manifest.json"
    stores = [manifest.parent for manifest in sorted(store_root(config).glob(pattern))]
    framing = config.framing.differences()
    found = [folder for folder in stores if read_manifest(folder).get("framing", {}) == framing]
    if not found:
        raise InputError(_ask_to_prepare(config))
    if len(found) > 1:
        sources = ", ".join(str(read_manifest(folder).get("source")) for folder in found)
        raise InputError(
            f"{config.name} has been prepared at {config.side} px from several places "
            f"({sources}): name one as data.source"
        )
    return found[0]


def _ask_to_prepare(config: DataConfig) -> str:
    return (
        f"{config.name} is not prepared at {config.side} px{_framed(config)} in "
        f"{store_root(config)}: run "
        f"{_prepare_command(config)}"
    )


def _prepare_command(config: DataConfig) -> str:
    place = config.source or "PATH"
    sets = "".join(f" --set data.{key}={value}" for key, value in _framing(config))
    return f"`pfedseq data prepare {config.name} --from {place} --size {config.side}{sets}`"


def _framed(config: DataConfig) -> str:
    """How images are resized, in a sentence; nothing where the whole image is."""
    told = ", ".join(f"{key} = {value}" for key, value in _framing(config))
    return f" ({told})" if told else ""


def _framing(config: DataConfig) -> Iterable[tuple[str, Any]]:
    return config.framing.differences().items()
