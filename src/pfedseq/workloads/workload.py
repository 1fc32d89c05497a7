"""The interface for everything that depends on the kind of examples, one folder per kind."""

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
    """The model and its examples on another device."""

    model: AdaptedModel
    source: Examples


@dataclass(frozen=True)
class Workload(ABC):
    """An adapted model and the kind of examples it reads.

    Local runs, the sites and server of a federation, and serving all use this interface.
    """

    kind: ClassVar[Kind]
    """The kind's interface to serving."""
    own_data: ClassVar[str]
    """`data.name` for a folder or file of the user's examples."""

    predictions: ClassVar[type] = Predictions
    """The type of predictions that its measures evaluate."""

    config: Config
    model: AdaptedModel

    @classmethod
    def check_headline(cls, config: Config) -> None:
        """Refuse a headline measure that is not defined for this kind of examples."""
        name, known = config.run.headline, MEASURES.get(config.run.headline)
        if known is not None and not issubclass(cls.predictions, known.of):
            others = [m.name for m in MEASURES.values() if issubclass(cls.predictions, m.of)]
            raise InputError(
                f"run.headline = {name!r} is not defined for {cls.kind.unit}s: choose among "
                f"{', '.join(others)}"
            )

    @classmethod
    def load(cls, config: Config, num_classes: int) -> Self:
        """The frozen backbone with adapter and head, a function of the config and its seed."""
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
        """This workload with `blocks` LoRAs side by side, for methods that use several."""
        return replace(self, model=self.model.widened(blocks))

    @classmethod
    @abstractmethod
    def check(cls, config: Config) -> None:
        """Refuse invalid options before any data are read."""

    @classmethod
    @abstractmethod
    def agreed(cls, data: DataConfig) -> dict[str, Any]:
        """The options of `[data]` that all sites of a federation must share."""

    @classmethod
    @abstractmethod
    def load_encoder(cls, config: Config) -> Encoder:
        """The frozen transformer that the config names."""

    @abstractmethod
    def examples(self, data: FederatedData, report: Report | None = None) -> Examples:
        """The clients' examples in the form that the adapted model reads.

        If outputs of the frozen layers below the first adapter are stored, missing ones are
        computed.
        """

    @abstractmethod
    def copy(self, data: FederatedData, examples: Examples, device: torch.device) -> Copy:
        """The model and the result of `examples` on another device."""

    @abstractmethod
    def auxiliary(self, threads: int = 1) -> AuxiliaryExamples:
        """The unlabelled examples of `[auxiliary]`, for methods that distil."""

    @abstractmethod
    def reader(self, examples: ExampleSet) -> Reader:
        """The reader that converts raw examples as in training."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the backbone for the user."""
        return ()

    def notes_of(self, examples: Examples) -> tuple[str, ...]:
        """Remarks on the reading of `examples` for the user."""
        return ()

    @property
    def sketch_shape(self) -> tuple[int, ...]:
        """Shape of one example in `Task.sketches`."""
        return (3, 32, 32)

    def facts(self) -> dict[str, Any]:
        """Options of `[model]` that were inferred, and that a resumed run must share."""
        return {}

    def written_out(self, config: Config) -> Config:
        """`config` with inferred options: `facts`, and the checksum of the starting adapter."""
        start = {"start_sha256": starting_sha256(config.adapter)}
        return config.model_copy(
            update={
                "model": config.model.model_copy(update=self.facts()),
                "adapter": config.adapter.model_copy(update=start),
            }
        )

    def site(self, number: int, client: ClientData, examples: Examples) -> ExampleSite:
        """The site of a client, without a folder for its personal model."""
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
        """The site with a folder for its personal model; `about` describes its origin."""
        about["num_train"] = len(site.data.train)

        def keep(phi: Params) -> None:
            self.personal(phi, examples, **about).save(place)

        return replace(site, keep=keep)

    def personal(self, phi: Params, examples: ExampleSet, **about: Any) -> PersonalModel:
        """φ as a personal model that can predict."""
        return PersonalModel(self.model, phi, examples.class_names, self.reader(examples), about)
