"""Many runs in one folder: what is there already is kept, what was cut off goes on.

A sweep is a list of entries (label, config); the run of an entry is the folder OUT/LABEL. Tables,
figures and searches are functions of these folders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from pfedseq.config import Config, dump_config
from pfedseq.errors import InputError
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.records import RunSummary
from pfedseq.runs.run import Listener, run_methods
from pfedseq.runs.world import World


@dataclass(frozen=True)
class Entry:
    """One run of a sweep."""

    label: str
    """Its folder within the sweep's, such as `fedavg/seed_0`."""
    config: Config

    def folder(self, out: Path) -> RunFolder:
        """Where the run's results are, or will be."""
        return RunFolder(out / self.label)


def sweep(
    entries: Sequence[Entry],
    out: Path,
    announce: Callable[[Entry], Listener | None] = lambda _: None,
    finished: Callable[[RunFolder], None] = lambda _: None,
) -> dict[str, RunSummary]:
    """Run what `out` does not hold yet and return all summaries by label.

    May be stopped and called again at any time: a finished run is never repeated, and one that
    was cut off continues from its checkpoints. `announce` is asked before each run for someone to
    listen to its rounds; `finished` gets its folder. Consecutive entries that differ only in their
    methods, rounds or local training share one world.
    """
    _check(entries, out)
    world: World | None = None
    for entry in entries:
        folder = entry.folder(out)
        if folder.summary.exists():
            continue
        if world is None or not world.serves(entry.config):
            world = World.build(entry.config)
        listener = announce(entry)
        RunFolder.create(folder.path, dump_config(entry.config))
        run_methods(replace(world, config=entry.config), folder, listener)
        finished(folder)
    return {entry.label: entry.folder(out).read_summary() for entry in entries}


def methods_by_seeds(config: Config, methods: Sequence[str], seeds: Sequence[int]) -> list[Entry]:
    """A config with each method alone and each seed, as METHOD/seed_S, ordered by seed."""
    return [
        Entry(f"{name}/seed_{seed}", _single(config, name, seed))
        for seed in seeds
        for name in methods
    ]


def _single(config: Config, method: str, seed: int) -> Config:
    """The same run with one method and one seed."""
    section = config.run.model_copy(update={"methods": (method,), "seed": seed})
    methods = {name: options for name, options in config.methods.items() if name == method}
    return config.model_copy(update={"run": section, "methods": methods}).resolved()


def _check(entries: Sequence[Entry], out: Path) -> None:
    """Refuse, before anything runs, labels that collide and results of other options."""
    seen: set[str] = set()
    for entry in entries:
        path = PurePosixPath(entry.label)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise InputError(f"{entry.label!r} cannot name a run: not a path in a folder")
        if entry.label in seen:
            raise InputError(f"two runs of the sweep are named {entry.label!r}")
        seen.add(entry.label)
        saved = entry.folder(out).config
        if saved.exists() and saved.read_text(encoding="utf-8") != dump_config(entry.config):
            raise InputError(
                f"{saved.parent} was made with other options than these; "
                "choose another --out, or delete that folder"
            )
