"""Many runs in one folder: finished runs are kept, interrupted ones continue.

A sweep is a list of entries (label, config); the run of an entry is the folder OUT/LABEL. Tables,
figures and searches are functions of these folders. Several processes may work on one sweep: each
takes runs that no other process has claimed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from pfedseq.config import Config, dump_config
from pfedseq.data.record import DataRecord, data_record, difference
from pfedseq.errors import InputError
from pfedseq.files import claim
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.rate import with_rate
from pfedseq.runs.records import RunSummary
from pfedseq.runs.run import Listener, Tell, run_methods, tell_nobody
from pfedseq.runs.world import World

SECONDS_BETWEEN_LOOKS = 2.0
"""Seconds between checks of an idle process for runs of other processes."""


@dataclass(frozen=True)
class SweepEntry:
    """One run of a sweep."""

    label: str
    """Its folder within the sweep's, such as `fedavg/seed_0`."""
    config: Config

    def folder(self, out: Path) -> RunFolder:
        """The results folder of the run."""
        return RunFolder(out / self.label)


def sweep(
    entries: Sequence[SweepEntry],
    out: Path,
    announce: Callable[[SweepEntry], Listener | None] = lambda _: None,
    finished: Callable[[RunFolder], None] = lambda _: None,
    tell: Tell = tell_nobody,
    failed: Callable[[SweepEntry, InputError], None] | None = None,
    build: Callable[[Config], World] = World.build,
) -> dict[str, RunSummary]:
    """Run the missing entries of `out` and return all summaries by label.

    It can be interrupted and called again at any time: finished runs are not repeated, and
    interrupted ones continue from their checkpoints. A run that another process has claimed is left
    to it and waited for at the end; if that process dies, the run is taken over. `announce` returns
    a listener for the rounds of each run; `finished` receives its folder; `tell` receives messages
    for the user. A run that fails, for example by diverging, ends the sweep, or, if `failed` is
    given, is reported to it and missing from the result.

    `build` makes an entry's world. Consecutive entries that differ only in methods, rounds or local
    training share one. Runs that should have the same data but do not are refused.
    """
    _check(entries, out)
    seen = _DataSeen()
    for entry in entries:
        if (record := entry.folder(out).read_data()) is not None:
            seen.check(entry, record, out)
    world: World | None = None
    left, said_to_wait = list(entries), False
    missing: set[str] = set()
    while left:
        elsewhere = []
        for entry in left:
            folder = entry.folder(out)
            if folder.summary.exists():
                continue
            with claim(folder.path) as ours:
                if not ours:
                    elsewhere.append(entry)
                    continue
                if folder.summary.exists():  # finished while we took the lock
                    continue
                if world is None or not world.serves(entry.config):
                    world = build(entry.config)
                    seen.check(entry, data_record(world.data), out)
                    for note in world.notes:
                        tell(note)
                try:
                    listener = announce(entry)
                    config = with_rate(world, folder.rated(entry.config), tell)
                    RunFolder.create(folder.path, dump_config(world.written_out(config)))
                    run_methods(replace(world, config=config), folder, listener, tell)
                except InputError as problem:
                    if failed is None:
                        raise
                    missing.add(entry.label)
                    failed(entry, problem)
                else:
                    finished(folder)
        if elsewhere and len(elsewhere) == len(left):
            if not said_to_wait:
                tell(
                    f"waiting for {len(elsewhere)} of the runs, which other processes have claimed"
                )
                said_to_wait = True
            time.sleep(SECONDS_BETWEEN_LOOKS)
        left = elsewhere
    return {e.label: e.folder(out).read_summary() for e in entries if e.label not in missing}


def methods_by_seeds(
    config: Config, methods: Sequence[str], seeds: Sequence[int]
) -> list[SweepEntry]:
    """One entry per method and seed, as METHOD/seed_S, ordered by seed."""
    return [
        SweepEntry(f"{name}/seed_{seed}", single(config, name, seed))
        for seed in seeds
        for name in methods
    ]


def single(config: Config, method: str, seed: int) -> Config:
    """The same run with one method and one seed."""
    section = config.run.model_copy(update={"methods": (method,), "seed": seed})
    methods = {name: options for name, options in config.methods.items() if name == method}
    return config.model_copy(update={"run": section, "methods": methods}).resolved()


def _check(entries: Sequence[SweepEntry], out: Path) -> None:
    """Refuse duplicate labels and results of other options, before anything runs."""
    seen: set[str] = set()
    for entry in entries:
        path = PurePosixPath(entry.label)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise InputError(f"{entry.label!r} cannot name a run: not a path in a folder")
        if entry.label in seen:
            raise InputError(f"two runs of the sweep are named {entry.label!r}")
        seen.add(entry.label)
        entry.folder(out).check_options(entry.config)


class _DataSeen:
    """The data of a sweep's runs.

    Runs with the same [data] have the same images, and with the same seed the same partition.
    """

    def __init__(self) -> None:
        self._images: dict[str, tuple[str, DataRecord]] = {}
        self._divisions: dict[str, tuple[str, DataRecord]] = {}

    def check(self, entry: SweepEntry, record: DataRecord, out: Path) -> None:
        """Refuse a run whose data differ from those of an earlier one."""
        data = entry.config.data.model_dump_json()
        for known, key, division in (
            (self._images, data, False),
            (self._divisions, f"{data} {entry.config.run.seed}", True),
        ):
            label, then = known.setdefault(key, (entry.label, record))
            if changed := difference(then, record, division=division):
                raise InputError(
                    f"{out / label} was made on other data than {entry.label} has ({changed}): "
                    "bring back the former data, or choose another --out"
                )
