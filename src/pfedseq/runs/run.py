"""From a config to a folder of results: runs each method, or continues it after a crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch

from pfedseq.config import Config, dump_config, load_config
from pfedseq.data.distribution import draw_distribution
from pfedseq.data.record import data_record
from pfedseq.engines.rounds import RoundOutcome, run_rounds
from pfedseq.engines.states import ClientStates, DiskStates, MemoryStates
from pfedseq.errors import InputError
from pfedseq.federation import Clients, Server
from pfedseq.runs.checkpoint import Checkpoint
from pfedseq.runs.folder import RunFolder, client_folders
from pfedseq.runs.records import RoundRecord, RunSummary, summarise_round
from pfedseq.runs.world import World

Listener = Callable[[RoundRecord], None]
Tell = Callable[[str], None]
"""Takes a sentence for the user."""


def tell_nobody(sentence: str) -> None:
    """Drop what nobody wants to read."""


def run(
    config: Config,
    out: Path | str,
    listener: Listener | None = None,
    tell: Tell = tell_nobody,
) -> RunSummary:
    """Run every method of a config into the new folder `out`."""
    RunFolder.check_vacant(Path(out))
    world = World.build(config)
    for note in world.notes:
        tell(note)
    folder = RunFolder.create(Path(out), dump_config(world.written_out(config)))
    return run_methods(world, folder, listener)


def resume(out: Path | str, listener: Listener | None = None) -> RunSummary:
    """Continue a run from its last checkpoints; the results are those of an unbroken run."""
    folder = RunFolder(Path(out))
    if not folder.config.exists():
        raise InputError(f"{out} holds no run: it has no config.toml")
    return run_methods(World.build(load_config(folder.config)), folder, listener)


def run_methods(world: World, folder: RunFolder, listener: Listener | None) -> RunSummary:
    """Run, or continue from their checkpoints, all methods of a folder's config."""
    folder.keep_data(data_record(world.data))
    if not folder.clients_picture.exists():
        draw_distribution(world.data, folder.clients_picture)
    for name in world.config.run.methods:
        run_method(world, folder, name, listener)
    return folder.write_summary()


class Stage(Protocol):
    """Where a method is run: a `World`, or a federation of sites that are elsewhere."""

    @property
    def config(self) -> Config:
        """The run's."""

    @property
    def names(self) -> list[str]:
        """The clients' own names, in order."""

    @property
    def device(self) -> torch.device:
        """Where the server's tensors live."""

    def start(
        self, name: str, states: ClientStates, places: Sequence[Path]
    ) -> tuple[Server, Clients]:
        """A method before round 1: its server, and an engine with its clients."""


def run_method(world: Stage, folder: RunFolder, name: str, listener: Listener | None) -> None:
    """Run a method, or continue it from its checkpoint, to the models that its clients save."""
    section = world.config.run
    rounds = section.rounds
    names = world.names
    states: ClientStates = MemoryStates()
    if world.config.engine.states == "disk":
        states = DiskStates(folder.states(name), world.device)
    checkpoint, done = Checkpoint(folder.checkpoint(name), states), 0
    places = [folder.adapter(name, place) for place in client_folders(names)]
    server, clients = world.start(name, checkpoint.states, places)
    if checkpoint.exists():
        done = checkpoint.load(server, world.device)
    folder.keep_records(lambda r: r.method != name or r.round <= done)

    def after_round(outcome: RoundOutcome) -> None:
        record = summarise_round(name, outcome, names)
        folder.append(record)
        t = outcome.t
        if t % section.checkpoint_every == 0 or t == rounds:
            checkpoint.save(t, server)
        if listener is not None:
            listener(record)

    left = range(done + 1, rounds + 1)
    run_rounds(server, clients, left, after_round, section.evaluate_every)
    clients.call("export", rounds, {i: server.payload(i) for i in clients.ids})
    if isinstance(states, DiskStates):
        states.discard()
