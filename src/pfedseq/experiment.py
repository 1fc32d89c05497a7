"""From a config to results: builds the parts, runs each method, writes the folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from pfedseq.checkpoint import load_checkpoint, save_checkpoint
from pfedseq.config import Config, dump_config, load_config
from pfedseq.data.auxiliary import load_auxiliary
from pfedseq.data.dataset import FederatedData
from pfedseq.data.distribution import partition_record
from pfedseq.data.loading import load_data
from pfedseq.engines.local import LocalClients
from pfedseq.engines.rounds import run_rounds
from pfedseq.engines.wire import WireClients
from pfedseq.errors import InputError
from pfedseq.federation import Server, Setup
from pfedseq.files import write_atomically
from pfedseq.methods import find_method
from pfedseq.metrics import RoundRecord
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.auxiliary import AuxiliaryImages
from pfedseq.model.backbone import load_backbone
from pfedseq.model.export import save_personal_model
from pfedseq.model.task import ImageSite, ImageSource
from pfedseq.params import Params
from pfedseq.report.curves import draw_curves
from pfedseq.results import RunFolder

_ENGINES = {"local": LocalClients, "wire": WireClients}

Listener = Callable[[RoundRecord], None]


@dataclass(frozen=True)
class World:
    """What all methods of a run have in common: the data, the model and φ^0."""

    config: Config
    data: FederatedData
    model: AdaptedModel
    sites: tuple[ImageSite, ...]

    @classmethod
    def build(cls, config: Config) -> World:
        """Load data and backbone; everything is a function of the config and its seed."""
        device = pick_device(config.engine.device)
        data = load_data(config.data, config.run.seed)
        section = config.model
        backbone = load_backbone(
            section.backbone,
            config.data.image_size,
            section.mean,
            section.std,
            num_heads=section.num_heads,
        )
        backbone.model.to(device)
        model = AdaptedModel(
            backbone, config.adapter, len(data.images.class_names), config.run.seed
        )
        source = ImageSource(data.images, backbone.mean, backbone.std, device)
        sites = tuple(
            ImageSite(i, model, source, client, config.training.batch_size, config.run.seed)
            for i, client in enumerate(data.clients)
        )
        world = cls(config, data, model, sites)
        if any(find_method(name).needs_auxiliary for name in config.run.methods):
            _ = world.auxiliary  # what is missing is better missed now than after other methods
        return world

    @cached_property
    def auxiliary(self) -> AuxiliaryImages:
        """Unlabelled images, loaded when a method first needs them."""
        size, seed = self.config.data.image_size, self.config.run.seed
        images = load_auxiliary(self.config.auxiliary, size, seed)
        return AuxiliaryImages(self.model, replace(self.sites[0].source, images=images), size, seed)

    def start(self, name: str) -> tuple[Server, LocalClients]:
        """A method before round 1: its server, and an engine with its clients."""
        method, options = find_method(name), self.config.method_config(name)
        engine = self.config.engine
        clients = _ENGINES[engine.kind](
            method.client,
            options,
            self.sites,
            threads=engine.threads or os.cpu_count() or 1,
            threads_per_client=engine.threads_per_client,
        )
        setup = Setup(
            self.model.initial,
            tuple(len(client.train) for client in self.data.clients),
            self.config.run.rounds,
            self.config.run.seed,
            self.model.num_classes,
            self.auxiliary if method.needs_auxiliary else None,
        )
        return method.server(options, setup), clients


def run(config: Config, out: Path | str, listener: Listener | None = None) -> dict[str, Any]:
    """Run every method of a config into the new folder `out`; returns what summary.json holds."""
    RunFolder.check_vacant(Path(out))
    world = World.build(config)
    folder = RunFolder.create(Path(out), dump_config(config))
    return run_methods(world, folder, listener)


def resume(out: Path | str, listener: Listener | None = None) -> dict[str, Any]:
    """Continue a run from its last checkpoints; the results are those of an unbroken run."""
    folder = RunFolder(Path(out))
    if not folder.config.exists():
        raise InputError(f"{out} holds no run: it has no config.toml")
    return run_methods(World.build(load_config(folder.config)), folder, listener)


def pick_device(wanted: str) -> torch.device:
    """The device of that name, or the best there is for `auto`."""
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if wanted == "auto":
        wanted = next(name for name, there in available.items() if there)
    if not available[wanted]:
        raise InputError(f"device {wanted!r} is not available here; use --device cpu or auto")
    return torch.device(wanted)


def run_methods(world: World, folder: RunFolder, listener: Listener | None) -> dict[str, Any]:
    """Run, or continue from their checkpoints, all methods of a folder's config."""
    write_atomically(folder.partition, partition_record(world.data))
    for name in world.config.run.methods:
        _run_method(world, folder, name, listener)
    summary = folder.write_summary()
    draw_curves(folder.by_method(), folder.curves)
    return summary


def _run_method(world: World, folder: RunFolder, name: str, listener: Listener | None) -> None:
    server, clients = world.start(name)
    section = world.config.run
    rounds = section.rounds
    checkpoint, done = folder.checkpoint(name), 0
    if checkpoint.exists():
        done = load_checkpoint(checkpoint, server, clients.states, world.model.device)
    folder.keep_records(lambda r: r["method"] != name or r["round"] <= done)

    def after_round(record: RoundRecord) -> None:
        folder.append(record)
        t = record["round"]
        if t % section.checkpoint_every == 0 or t == rounds:
            save_checkpoint(checkpoint, t, server, clients.states)
        if listener is not None:
            listener(record)

    left = range(done + 1, rounds + 1)
    run_rounds(name, server, clients, left, after_round, section.evaluate_every)
    down = {i: server.payload(i) for i in clients.ids}
    for i, reply in clients.call("export", rounds, down).items():
        phi = Params(reply.tensors["adapter"], reply.tensors["head"])
        save_personal_model(
            folder.adapter(name, i),
            world.model,
            phi,
            world.config.model.backbone,
            world.data.images.class_names,
        )
