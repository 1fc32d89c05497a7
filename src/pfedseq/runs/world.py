"""What all methods of a run share, built from its config: data, model, sites and φ^0."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch

from pfedseq.config import Config, RunConfig, TrainingConfig
from pfedseq.data.arrays import Given
from pfedseq.data.dataset import FederatedData
from pfedseq.data.image_store import Report
from pfedseq.data.loading import load_data, remarks
from pfedseq.engines.grouping import automatic_size
from pfedseq.engines.hello import introduce
from pfedseq.engines.local import LocalClients
from pfedseq.engines.privacy import Privacy
from pfedseq.engines.roster import joined
from pfedseq.engines.states import ClientStates
from pfedseq.engines.wire import WireClients
from pfedseq.errors import InputError
from pfedseq.federation import Clients, Server, Setup
from pfedseq.methods import find_method
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.auxiliary import AuxiliaryExamples
from pfedseq.model.task import ExampleSite
from pfedseq.runs.identity import MadeWith, made_with
from pfedseq.training.config import LocalTraining
from pfedseq.workloads import find_workload
from pfedseq.workloads.devices import pick_devices
from pfedseq.workloads.workload import Copy, Workload

_ENGINES = {"local": LocalClients, "wire": WireClients}


@dataclass(frozen=True)
class World:
    """What all methods of a run share: the data, the model and φ^0."""

    config: Config
    data: FederatedData
    workload: Workload
    sites: tuple[ExampleSite, ...]
    notes: tuple[str, ...] = ()
    """Messages about the data and the backbone."""
    copies: tuple[Copy, ...] = ()
    """Copies on further devices."""
    rates: dict[str, float] = field(default_factory=dict, compare=False)
    """The rates that range tests found, by the [training] section."""

    @classmethod
    def build(cls, config: Config, given: Given | None = None) -> World:
        """Load data and backbone; everything is a function of the config and its seed.

        With `given`, the examples come from the caller.
        """
        config = config.sized()
        methods = [find_method(name) for name in config.run.methods]
        kind = find_workload(config.data)
        kind.check(config)
        data = load_data(config.data, config.run.seed, given=given)
        workload = kind.load(config, len(data.examples.class_names))
        examples = workload.examples(data)
        others = pick_devices(config.engine.device)[1:]
        copies = tuple(workload.copy(data, examples, there) for there in others)
        sites = (workload.site(i, client, examples) for i, client in enumerate(data.clients))
        notes = (
            *data.examples.notes,
            *remarks(data),
            *workload.notes,
            *workload.notes_of(examples),
        )
        world = cls(config, data, workload, tuple(sites), notes, copies)
        if any(method.needs_auxiliary for method in methods):
            _ = world.auxiliary  # fail now rather than after other methods have run
        return world

    @property
    def model(self) -> AdaptedModel:
        """The adapted model that all clients share."""
        return self.workload.model

    @property
    def names(self) -> list[str]:
        """The clients' own names, in order."""
        return [client.name for client in self.data.clients]

    @property
    def device(self) -> torch.device:
        """The device of the server and of the first group of clients."""
        return self.model.device

    @property
    def num_devices(self) -> int:
        """The number of devices over which clients are distributed."""
        return 1 + len(self.copies)

    def serves(self, config: Config) -> bool:
        """Whether `build(config)` would give an equal world."""
        sized = config.sized_as(self.config.data)
        return _world_of(sized) == _world_of(self.config)

    def written_out(self, config: Config) -> Config:
        """The config with the values that this world resolved.

        These are the normalisation, the image size and the checksum of the initial adapter.
        """
        return self.workload.written_out(config.sized_as(self.config.data))

    @cached_property
    def auxiliary(self) -> AuxiliaryExamples:
        """Unlabelled examples, loaded when a method first needs them."""
        return self.workload.auxiliary(self._threads)

    def made_with(self, name: str) -> MadeWith:
        """What a method's numbers depend on, for its checkpoints."""
        return made_with(self, name)

    @property
    def clients_per_pass(self) -> int:
        """The number of clients that share a pass through the backbone."""
        chosen, batch_size = self.config.engine.clients_per_pass, self.config.training.batch_size
        return chosen or automatic_size(len(self.sites), batch_size, self._cards)

    @property
    def _cards(self) -> int:
        """The number of GPUs; 0 on a CPU."""
        return 0 if self.device.type == "cpu" else self.num_devices

    @property
    def _threads(self) -> int:
        return self.config.engine.threads or self._cards or os.cpu_count() or 1

    def start(
        self,
        name: str,
        states: ClientStates | None = None,
        places: Sequence[Path] | None = None,
    ) -> tuple[Server, Clients]:
        """A method before round 1: its server, and an engine with its clients.

        `states` stores the clients' states; `places` are the folders of their personal models.
        """
        method, options = find_method(name), self.config.method_config(name)
        engine = self.config.engine
        workload, blocks = self.workload.widened(options.rank_blocks), options.rank_blocks
        model = workload.model
        sites = [replace(site, model=model) for site in self.sites]
        copies = [copy._replace(model=copy.model.widened(blocks)) for copy in self.copies]
        if places:
            examples, save = self.data.examples, workload.saves
            sites = [
                save(site, places[i], examples, client=whose, number=i, method=name)
                for i, (site, whose) in enumerate(zip(sites, self.names, strict=True))
            ]
        clients: Clients = _ENGINES[engine.kind](
            method.client,
            options,
            sites,
            threads=self._threads,
            threads_per_client=engine.threads_per_client,
            clients_per_pass=self.clients_per_pass,
            states=states,
            payload=self.config.federation.payload,
            copies=[[replace(site, **copy._asdict()) for site in sites] for copy in copies],
            privacy=Privacy.simulated(self.config.privacy, self.config.run.seed, name),
        )
        conditions = self.config.federation
        first = joined(clients.ids, 1, conditions)
        hellos = introduce(clients, first)
        setup = Setup(
            model.initial,
            tuple(hello.train_examples for hello in hellos),
            self.config.run.rounds,
            self.config.run.seed,
            len(hellos[0].class_names),
            self.auxiliary if method.needs_auxiliary else None,
            conditions.aggregation,
            conditions.trim,
            tuple(first),
            sketch_shape=self.workload.sketch_shape,
            factors=model.factors,
            max_weight=conditions.max_weight,
            name_of=lambda number: self.names[number],
        )
        return method.server(options, setup), clients


def fill_tokens(config: Config, report: Report) -> int:
    """Precompute the frozen layers' outputs for all examples; return the number of layers."""
    config = config.sized()
    data = load_data(config.data, config.run.seed)
    if data.examples.fingerprint is None:
        raise InputError(f"tokens of {config.data.name} are not stored between runs")
    workload = find_workload(config.data).load(config, len(data.examples.class_names))
    prefix = workload.model.prefix
    if prefix is None or config.model.tokens == "none":
        raise InputError(
            "no layer lies below the first adapter, or model.tokens is 'none': there is nothing to "
            "precompute; set adapter.layers, such as 'last 4'"
        )
    workload.examples(data, report)
    return prefix.num_layers


def _world_of(config: Config) -> Config:
    """The config without options that do not affect the world: methods, rounds, local training."""
    run = RunConfig(seed=config.run.seed, measures=config.run.each_evaluation)
    by_method = {*LocalTraining.model_fields, "rate_test"}
    training = TrainingConfig(**config.training.model_dump(exclude=by_method))
    return config.model_copy(update={"run": run, "training": training, "methods": {}})
