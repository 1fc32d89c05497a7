"""All that depends on what an example is: a modality's folder implements this once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch

from pfedseq.config import Config
from pfedseq.data.config import DataConfig
from pfedseq.data.dataset import ClientData, ExampleSet, FederatedData
from pfedseq.data.image_store import Report
from pfedseq.errors import InputError
from pfedseq.measures import MEASURES, Predictions
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.auxiliary import AuxiliaryExamples
from pfedseq.model.encoders.encoder import Encoder
from pfedseq.model.starting import starting_params, starting_sha256
from pfedseq.model.task import Examples, ExampleSite
from pfedseq.params import Params
from pfedseq.workloads.devices import pick_devices
from pfedseq.workloads.kinds import Kind
from pfedseq.workloads.personal import PersonalModel, Reader


class Copy(NamedTuple):
    """The model and what it reads, once more on another device."""

    model: AdaptedModel
    source: Examples


@dataclass(frozen=True)
class Workload(ABC):
    """An adapted model and the kind of examples it reads.

    A run in one process, a site of a federation, its server and serving ask the same object.
    """

    kind: ClassVar[Kind]
    """What serving asks of examples of this kind."""
    own_data: ClassVar[str]
    """The name of `[data]` for a folder or file of somebody's own examples."""

    predictions: ClassVar[type] = Predictions
    """What its measures are measures of."""

    config: Config
    model: AdaptedModel

    @classmethod
    def check_headline(cls, config: Config) -> None:
        """Refuse to go by a measure that is not defined for such examples."""
        name, known = config.run.headline, MEASURES.get(config.run.headline)
        if known is not None and not issubclass(cls.predictions, known.of):
            others = [m.name for m in MEASURES.values() if issubclass(cls.predictions, m.of)]
            raise InputError(
                f"run.headline = {name!r} is not defined for {cls.kind.unit}s: choose among "
                f"{', '.join(others)}"
            )

    @classmethod
    def load(cls, config: Config, num_classes: int) -> Self:
        """The frozen backbone and what is tuned on it: a function of the config and its seed."""
        cls.check(config)
        model = AdaptedModel(
            cls.load_encoder(config),
            config.adapter,
            num_classes,
            config.run.seed,
            config.model.precision,
        )
        model.initial = starting_params(model)
        return cls(config, model.on(pick_devices(config.engine.device)[0]))

    def widened(self, blocks: int) -> Self:
        """The same with `blocks` LoRAs side by side, for a method of several."""
        return replace(self, model=self.model.widened(blocks))

    @classmethod
    @abstractmethod
    def check(cls, config: Config) -> None:
        """Refuse what can be refused before any data are read."""

    @classmethod
    @abstractmethod
    def agreed(cls, data: DataConfig) -> dict[str, Any]:
        """The options of `[data]` that all sites of a federation must have in common."""

    @classmethod
    @abstractmethod
    def load_encoder(cls, config: Config) -> Encoder:
        """The frozen transformer that the config names."""

    @abstractmethod
    def examples(self, data: FederatedData, report: Report | None = None) -> Examples:
        """The clients' examples as the adapted model reads them.

        What the frozen layers below the first adapter make of them is computed where it is kept.
        """

    @abstractmethod
    def copy(self, data: FederatedData, examples: Examples, device: torch.device) -> Copy:
        """The model on one more device, and what `examples` gave as it is read there."""

    @abstractmethod
    def auxiliary(self, threads: int = 1) -> AuxiliaryExamples:
        """The unlabelled examples of `[auxiliary]`, for methods that distil."""

    @abstractmethod
    def reader(self, examples: ExampleSet) -> Reader:
        """How a raw example becomes what the model takes, as it was in training."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of the backbone."""
        return ()

    def notes_of(self, examples: Examples) -> tuple[str, ...]:
        """What the user should know of how `examples` are read."""
        return ()

    @property
    def sketch_shape(self) -> tuple[int, ...]:
        """Shape of one example in `Task.sketches`."""
        return (3, 32, 32)

    def facts(self) -> dict[str, Any]:
        """Options of `[model]` as they were found; a resumed run starts from the same."""
        return {}

    def written_out(self, config: Config) -> Config:
        """`config` with all that was found for it: `facts`, and the start's checksum."""
        start = {"start_sha256": starting_sha256(config.adapter)}
        return config.model_copy(
            update={
                "model": config.model.model_copy(update=self.facts()),
                "adapter": config.adapter.model_copy(update=start),
            }
        )

    def site(self, number: int, client: ClientData, examples: Examples) -> ExampleSite:
        """The site of a client, which keeps no personal model yet."""
        training = self.config.training
        return ExampleSite(
            number,
            self.model,
            examples,
            client,
            training.batch_size,
            self.config.run.seed,
            examples_per_round=training.examples_per_round,
            measures=self.config.run.each_evaluation,
            loss=training,
        )

    def saves(
        self, site: ExampleSite, place: Path, examples: ExampleSet, **about: Any
    ) -> ExampleSite:
        """The site with a folder to save its personal model to; `about` says whose it is."""
        about["num_train"] = len(site.data.train)

        def keep(phi: Params) -> None:
            self.personal(phi, examples, **about).save(place)

        return replace(site, keep=keep)

    def personal(self, phi: Params, examples: ExampleSet, **about: Any) -> PersonalModel:
        """φ with all that a prediction needs."""
        return PersonalModel(self.model, phi, examples.class_names, self.reader(examples), about)
