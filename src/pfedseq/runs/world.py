"""From a config to what all methods of a run have in common: data, model, sites, φ^0."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from pfedseq.config import Config, RunConfig, TrainingConfig
from pfedseq.data.auxiliary import load_auxiliary
from pfedseq.data.dataset import FederatedData, ImageSet, TextSet
from pfedseq.data.image_store import Report
from pfedseq.data.loading import load_data, remarks
from pfedseq.engines.cohort import automatic_cohort
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
from pfedseq.model.backbone import Backbone, check_image_size, load_backbone
from pfedseq.model.starting import starting_params, starting_sha256
from pfedseq.model.task import Examples, ExampleSite
from pfedseq.params import Params
from pfedseq.runs.identity import MadeWith, made_with
from pfedseq.workloads.images.auxiliary import auxiliary_images
from pfedseq.workloads.images.source import ImageSource, with_tokens
from pfedseq.workloads.personal import save_personal_model
from pfedseq.workloads.text.source import (
    NO_THUMBNAILS,
    TextSource,
    load_text_encoder,
    save_text_model,
)

_ENGINES = {"local": LocalClients, "wire": WireClients}


class Copy(NamedTuple):
    """The model and what it reads, once more on another device."""

    model: AdaptedModel
    source: Examples


@dataclass(frozen=True)
class World:
    """What all methods of a run have in common: the data, the model and φ^0."""

    config: Config
    data: FederatedData
    model: AdaptedModel
    sites: tuple[ExampleSite, ...]
    notes: tuple[str, ...] = ()
    """What the user should know of the data and the backbone."""
    copies: tuple[Copy, ...] = ()
    """On the devices after the first."""

    @classmethod
    def build(cls, config: Config) -> World:
        """Load data and backbone; everything is a function of the config and its seed."""
        config = config.sized()
        methods = [find_method(name) for name in config.run.methods]
        if config.data.name == "text" and any(method.needs_thumbnails for method in methods):
            raise InputError(NO_THUMBNAILS)
        if config.data.name != "text":
            check_image_size(config.model.backbone, config.data.side)
        data = load_data(config.data, config.run.seed)
        notes = [*data.examples.notes, *remarks(data)]
        source: Examples
        others = pick_devices(config.engine.device)[1:]
        if isinstance(data.examples, TextSet):
            model, source = load_text_model(config, data.examples)
            copies = [Copy(model.on(there), replace(source, device=there)) for there in others]
        else:
            backbone, model = load_model(config, len(data.examples.class_names))
            source = image_source(config, data, backbone, model)
            copies = [copied(config, data, source, model, there) for there in others]
            notes += [backbone.note] if backbone.note else []
        sites = tuple(
            ExampleSite(
                i,
                model,
                source,
                client,
                config.training.batch_size,
                config.run.seed,
                examples_per_round=config.training.examples_per_round,
                measures=config.run.each_evaluation,
            )
            for i, client in enumerate(data.clients)
        )
        world = cls(config, data, model, sites, tuple(notes), tuple(copies))
        if any(method.needs_auxiliary for method in methods):
            _ = world.auxiliary  # what is missing is better missed now than after other methods
        return world

    @property
    def names(self) -> list[str]:
        """The clients' own names, in order."""
        return [client.name for client in self.data.clients]

    @property
    def device(self) -> torch.device:
        """Where the server's tensors live, and the first share of the clients."""
        return self.model.device

    @property
    def num_devices(self) -> int:
        """Among how many the clients are shared out."""
        return 1 + len(self.copies)

    def serves(self, config: Config) -> bool:
        """Whether `build` would make of `config` this very world."""
        sized = config.with_image_size(self.config.data.image_size)
        return _world_of(sized) == _world_of(self.config)

    def written_out(self, config: Config) -> Config:
        """A config of this world with all that it found.

        That is the backbone's normalisation and image size, and the start's checksum.
        """
        source = self.sites[0].source
        if not isinstance(source, ImageSource):
            return config
        used = config.model.model_copy(update={"mean": source.mean, "std": source.std})
        start = {"start_sha256": starting_sha256(config.adapter)}
        adapter = config.adapter.model_copy(update=start)
        sized = config.with_image_size(self.config.data.image_size)
        return sized.model_copy(update={"model": used, "adapter": adapter})

    @cached_property
    def auxiliary(self) -> AuxiliaryExamples:
        """Unlabelled examples, loaded when a method first needs them."""
        section, seed = self.config.auxiliary, self.config.run.seed
        source, model = self.sites[0].source, self.model
        if isinstance(source, TextSource):
            texts = source.auxiliary(section, seed)
            return AuxiliaryExamples(model, texts.inputs, len(texts.tokens), seed, self._threads)
        assert isinstance(source, ImageSource)
        size = self.config.data.side
        images = load_auxiliary(section, size, seed)
        source = replace(source, images=images, tokens=None)
        return auxiliary_images(model, source, size, seed, self._threads)

    def made_with(self, name: str) -> MadeWith:
        """What a method's numbers depend on, for its checkpoints."""
        return made_with(self, name)

    @property
    def cohort(self) -> int:
        """How many clients are trained in one pass."""
        chosen, batch_size = self.config.engine.cohort, self.config.training.batch_size
        return chosen or automatic_cohort(len(self.sites), batch_size, self._cards)

    @property
    def _cards(self) -> int:
        """Graphics cards; none where the processor computes."""
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

        `states` keeps what the clients remember; `places` are where each saves its personal model.
        """
        method, options = find_method(name), self.config.method_config(name)
        engine = self.config.engine
        sites = [
            self._site(i, places[i], name) if places else site for i, site in enumerate(self.sites)
        ]
        clients: Clients = _ENGINES[engine.kind](
            method.client,
            options,
            sites,
            threads=self._threads,
            threads_per_client=engine.threads_per_client,
            cohort=self.cohort,
            states=states,
            payload=self.config.federation.payload,
            copies=[[replace(site, **copy._asdict()) for site in sites] for copy in self.copies],
            privacy=Privacy.simulated(self.config.privacy, self.config.run.seed, name),
        )
        conditions = self.config.federation
        first = joined(clients.ids, 1, conditions)
        hellos = introduce(clients, first)
        setup = Setup(
            self.model.initial,
            tuple(hello.train_examples for hello in hellos),
            self.config.run.rounds,
            self.config.run.seed,
            len(hellos[0].class_names),
            self.auxiliary if method.needs_auxiliary else None,
            conditions.aggregation,
            conditions.trim,
            tuple(first),
        )
        return method.server(options, setup), clients

    def _site(self, i: int, place: Path, method: str) -> ExampleSite:
        """Client i's site, which saves its personal model to the folder `place`."""
        examples, client = self.data.examples, self.data.clients[i]
        about = {
            "client": client.name,
            "number": i,
            "method": method,
            "num_train": len(client.train),
        }

        def keep(phi: Params) -> None:
            names = examples.class_names
            if isinstance(examples, TextSet):
                backbone = self.config.model.backbone
                save_text_model(place, self.model, phi, backbone, names, **about)
                return
            save_personal_model(
                place,
                self.model,
                phi,
                names,
                examples.window,
                **about,
            )

        return replace(self.sites[i], keep=keep)


def load_model(config: Config, num_classes: int) -> tuple[Backbone, AdaptedModel]:
    """The frozen backbone and what is tuned on it: a function of the config and its seed."""
    section, size = config.model, config.data.side
    check_image_size(section.backbone, size)
    backbone = load_backbone(
        section.backbone, size, section.mean, section.std, num_heads=section.num_heads
    )
    model = AdaptedModel(
        backbone,
        config.adapter,
        num_classes,
        config.run.seed,
        section.precision,
    )
    model.initial = starting_params(model)
    return backbone, model.on(pick_devices(config.engine.device)[0])


def image_source(
    config: Config,
    data: FederatedData,
    backbone: Backbone,
    model: AdaptedModel,
    report: Report | None = None,
) -> ImageSource:
    """The images as the adapted layers read them; tokens that are not there yet are computed."""
    assert isinstance(data.examples, ImageSet)
    source = ImageSource(data.examples, backbone.mean, backbone.std, model.device)
    if model.prefix is None:
        return source
    section, store = config.model, config.data.store
    return with_tokens(source, model.prefix, data.clients, section.tokens, store, report)


def copied(
    config: Config,
    data: FederatedData,
    source: ImageSource,
    model: AdaptedModel,
    device: torch.device,
) -> Copy:
    """Model and images on one more device; tokens that are kept are read by all of them."""
    there = model.on(device)
    if model.prefix is not None and config.model.tokens == "none":
        return Copy(there, image_source(config, data, model.backbone, there))
    return Copy(there, replace(source, device=device))


def fill_tokens(config: Config, report: Report) -> int:
    """Compute ahead what the frozen layers make of the clients' images; gives how many layers."""
    config = config.sized()
    data = load_data(config.data, config.run.seed)
    if data.examples.fingerprint is None or not isinstance(data.examples, ImageSet):
        raise InputError(f"of {config.data.name} no tokens are kept from run to run")
    backbone, model = load_model(config, len(data.examples.class_names))
    if model.prefix is None or config.model.tokens == "none":
        raise InputError(
            "no layer lies below the first adapter, or model.tokens is 'none': there is nothing to "
            "compute ahead; set adapter.layers, such as 'last 4'"
        )
    image_source(config, data, backbone, model, report)
    return len(model.prefix.layers)


def load_text_model(config: Config, texts: TextSet) -> tuple[AdaptedModel, TextSource]:
    """The adapted BERT and what it reads."""
    device = pick_devices(config.engine.device)[0]
    encoder = load_text_encoder(config.model.backbone)
    model = AdaptedModel(
        encoder,
        config.adapter,
        len(texts.class_names),
        config.run.seed,
        config.model.precision,
    )
    return model.on(device), TextSource.of(texts, encoder, config.data.max_tokens, device)


def pick_devices(wanted: str | Sequence[str]) -> list[torch.device]:
    """The devices of those names, all of one kind; all graphics cards for `cuda` and for `auto`."""
    counts = {
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
        "cpu": 1,
    }
    devices = []
    for name in [wanted] if isinstance(wanted, str) else wanted:
        if name == "auto":
            name = next(kind for kind, count in counts.items() if count)
        kind, _, number = name.partition(":")
        if (number and not number.isdigit()) or int(number or 0) >= counts.get(kind, 0):
            raise InputError(f"device {name!r} is not available here; use --device cpu or auto")
        every = range(counts["cuda"]) if name == "cuda" else []
        devices += [torch.device("cuda", card) for card in every] or [torch.device(name)]
    if len({device.type for device in devices}) > 1:
        raise InputError(
            f"engine.device names devices of several kinds ({', '.join(map(str, devices))}), which "
            "round differently and are not equally fast: choose one kind"
        )
    return devices


def _world_of(config: Config) -> Config:
    """The config without what only says which methods run in a world, how long, and how."""
    run = RunConfig(seed=config.run.seed, measures=config.run.each_evaluation)
    given = config.training
    training = TrainingConfig(
        batch_size=given.batch_size,
        examples_per_round=given.examples_per_round,
    )
    return config.model_copy(update={"run": run, "training": training, "methods": {}})
