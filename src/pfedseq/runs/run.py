"""From a config to a folder of results: runs each method, or continues it after a crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from pfedseq.config import Config, dump_config, load_config
from pfedseq.data.arrays import Given, are_given, section_for
from pfedseq.data.distribution import draw_distribution
from pfedseq.data.record import data_record
from pfedseq.engines.intake import Intake
from pfedseq.engines.roster import Roster, payloads
from pfedseq.engines.rounds import RoundOutcome, run_rounds
from pfedseq.engines.states import ClientStates, DiskStates, MemoryStates
from pfedseq.errors import InputError, WriteError
from pfedseq.federation import Clients, Server
from pfedseq.files import refusing_company
from pfedseq.runs.checkpoint import Checkpoints
from pfedseq.runs.ending import assess, choose, enough
from pfedseq.runs.folder import RunFolder, client_folders
from pfedseq.runs.identity import MadeWith
from pfedseq.runs.interrupt import Interruption, finishing_the_round
from pfedseq.runs.rate import with_rate
from pfedseq.runs.records import RoundRecord, RunSummary, summarise_round
from pfedseq.runs.world import World

Listener = Callable[[RoundRecord], None]
Tell = Callable[[str], None]
"""Receives a message for the user."""


class _EnoughError(Exception):
    """A method stops before its last round."""


def tell_nobody(sentence: str) -> None:
    """Discard the message."""


def run(
    config: Config,
    out: Path | str,
    listener: Listener | None = None,
    tell: Tell = tell_nobody,
    data: Given | None = None,
) -> RunSummary:
    """Run every method of a config into the folder `out`.

    An unfinished run of the same config in `out` is continued; anything else there is refused.
    `data` replaces [data] by the clients' examples (`data/arrays.py`).
    """
    folder = RunFolder(Path(out))
    if data is not None:
        config = config.model_copy(update={"data": section_for(data, config.data)})
    if begun := folder.config.exists():
        if folder.finished:
            raise InputError(f"{out} already holds a run, which is finished; choose another --out")
        folder.check_options(config)
        tell(f"{out} holds an unfinished run of this config; continuing it")
        config = folder.rated(config)
    else:
        RunFolder.check_vacant(folder.path)
    world = World.build(config, data)
    for note in world.notes:
        tell(note)
    if not begun:
        if config.wants_rate:
            config = with_rate(world, config, tell)
            world = replace(world, config=config.sized_as(world.config.data))
        RunFolder.create(folder.path, dump_config(world.written_out(config)))
    return run_methods(world, folder, listener, tell)


def resume(
    out: Path | str,
    listener: Listener | None = None,
    tell: Tell = tell_nobody,
    data: Given | None = None,
) -> RunSummary:
    """Continue a run from its last checkpoints; the results equal those of an uninterrupted run.

    A run that was started with `data` needs the same data again; other data are refused.
    """
    folder = RunFolder(Path(out))
    if not folder.config.exists():
        raise InputError(f"{out} holds no run: it has no config.toml")
    config = load_config(folder.config)
    if data is not None and not are_given(config.data):
        raise InputError(f"{out} was started on {config.data.name}: resume it without data")
    return run_methods(World.build(config, data), folder, listener, tell)


def run_methods(
    world: World, folder: RunFolder, listener: Listener | None, tell: Tell
) -> RunSummary:
    """Run, or continue from their checkpoints, all methods of a folder's config.

    Ctrl-C stops it after the current round, a second Ctrl-C immediately.
    """
    section = world.config.run
    epsilon = world.config.privacy.spent(section.rounds, len(section.methods))
    with refusing_company(folder.path), finishing_the_round(tell) as interruption:
        try:
            folder.keep_data(data_record(world.data))
            if not folder.clients_picture.exists():
                draw_distribution(world.data, folder.clients_picture)
            for name in world.config.run.methods:
                run_method(world, folder, name, listener, tell, interruption)
                interruption.stop_if_wanted()
            return folder.write_summary(epsilon)
        except WriteError as problem:
            raise WriteError(
                f"{problem}; no finished round is lost: once this is fixed, "
                f"`pfedseq resume {folder.path}` continues it"
            ) from None


class Stage(Protocol):
    """The environment of a run: a `World`, or a federation of remote sites."""

    @property
    def config(self) -> Config:
        """Config of the run."""

    @property
    def names(self) -> list[str]:
        """The clients' own names, in order."""

    @property
    def device(self) -> torch.device:
        """The device of the server's tensors."""

    def start(
        self, name: str, states: ClientStates, places: Sequence[Path]
    ) -> tuple[Server, Clients]:
        """A method before round 1: its server, and an engine with its clients."""

    def made_with(self, name: str) -> MadeWith:
        """What a method's numbers depend on, for its checkpoints."""


def run_method(
    world: Stage,
    folder: RunFolder,
    name: str,
    listener: Listener | None,
    tell: Tell = tell_nobody,
    interruption: Interruption | None = None,
) -> None:
    """Run a method, or continue it from its checkpoint, to the models that its clients save.

    If `interruption` requests it, the run stops after the current round.
    """
    interruption = interruption or Interruption(tell)
    section = world.config.run
    rounds = section.rounds
    states: ClientStates = MemoryStates()
    if world.config.engine.states == "disk":
        states = DiskStates(folder.states(name), world.device)
    checkpoints = Checkpoints(folder.checkpoints(name), states, world.made_with(name))
    places = [folder.adapter(name, place) for place in client_folders(world.names)]
    server, clients = world.start(name, checkpoints.states, places)
    done = checkpoints.load(server, world.device, tell)
    folder.keep_records(name, done)
    for note in server.notes:
        tell(f"{name}: {note}")
    records = folder.by_method().get(name, [])
    if done < rounds and not enough(records, section):
        folder.assessment(name).unlink(missing_ok=True)  # from a run that was restarted

    def after_round(outcome: RoundOutcome) -> None:
        names = world.names  # sites may join a federation
        record = summarise_round(name, outcome, section.headline)
        for what, some in (("joined", outcome.joined), ("left", outcome.left)):
            if some:
                tell(f"{name}, round {outcome.t}: {what}: {', '.join(names[i] for i in some)}")
        for i, reason in outcome.refused.items():
            tell(f"{name}, round {outcome.t}: client {names[i]} was left out: {reason}")
        t = outcome.t
        records.append(record)
        if choose(records, section) == t:
            clients.call("keep", t, payloads(server))
        folder.append(record)
        last = t == rounds or enough(records, section)
        if t % section.checkpoint_every == 0 or last or interruption.wanted:
            checkpoints.save(t, server)
        if listener is not None:
            listener(record)
        interruption.stop_if_wanted()
        if last and t < rounds:
            raise _EnoughError

    left = range(done + 1, rounds + 1) if not enough(records, section) else range(0)
    every = section.evaluate_every
    ahead = section.keep == "last" and section.patience is None
    with suppress(_EnoughError):
        run_rounds(server, clients, left, after_round, every, world.config.federation, ahead)
    if not folder.assessment(name).exists():
        intake = Intake(Roster(clients, server, world.config.federation))
        found = assess(server, intake, records, section)
        for i, reason in intake.refused.items():
            tell(f"{name}, at the end: client {world.names[i]} was left out: {reason}")
        folder.write_assessment(name, found)
    clients.call("export", records[-1].round, payloads(server))
    if isinstance(states, DiskStates):
        states.discard()
