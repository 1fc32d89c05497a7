"""Config sections without a package of their own: run, model, training, engine, …"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from pfedseq.base_config import BaseConfig
from pfedseq.measures import ALWAYS, MEASURES
from pfedseq.model.normalisation import NAMED
from pfedseq.training.augmentations import AugmentationConfig
from pfedseq.training.config import HeadKind, LocalTraining
from pfedseq.training.loss import LossConfig


class RunConfig(BaseConfig):
    """[run]: methods, rounds, seed and evaluation."""

    name: str = Field("run", pattern=r"^[\w.-]+$", description="names the results folder")
    methods: tuple[str, ...] = Field(("pfedseq",), min_length=1, description="methods, in order")
    rounds: int = Field(80, ge=1, description="T, communication rounds; paper: 80")
    seed: int = Field(0, ge=0, description="decides partitions, initial weights and batch orders")
    evaluate_every: int = Field(
        1, ge=1, description="rounds between two evaluations; the last round always has one"
    )
    checkpoint_every: int = Field(1, ge=1, description="rounds between two checkpoints")
    headline: str = Field(
        "accuracy",
        description="the measure that tables, tuning, the best round and the harm alarm go by: "
        f"{', '.join(MEASURES)}",
    )
    measures: tuple[str, ...] = Field(
        (),
        description="measures of every evaluation, beside accuracy, loss and the headline; after "
        "the last round there are all",
    )
    keep: Literal["last", "best_on_validation"] = Field(
        "last",
        description="whose models the clients keep: the last round's, or those of the round with "
        "the best mean headline on validation data",
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="evaluations without a better mean headline on validation data after which a "
        "method stops; default: never",
    )

    @field_validator("headline")
    @classmethod
    def _known_headline(cls, name: str, info: ValidationInfo) -> str:
        return cls._known_measures((name,), info)[0]

    @field_validator("measures")
    @classmethod
    def _known_measures(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        """Refuse unknown measures, except when only reading results."""
        for name in names if not (info.context or {}).get("only_look") else ():
            if name not in MEASURES:
                raise ValueError(f"there is no measure {name!r}: known are {', '.join(MEASURES)}")
        return names

    @property
    def each_evaluation(self) -> tuple[str, ...]:
        """The measures of every evaluation, without duplicates."""
        return tuple(dict.fromkeys((*ALWAYS, self.headline, *self.measures)))


class ModelConfig(BaseConfig):
    """[model]: the frozen backbone."""

    backbone: str = Field(
        "demo",
        description="`demo`, a hub id (paper: google/vit-base-patch16-224-in21k), a folder of "
        "transformers, or a timm-format weights file",
    )
    mean: tuple[float, float, float] | None = Field(
        None,
        description="of the inputs in [0, 1], or `imagenet` or `half` for mean and std; default: "
        "the backbone's own, else as a weights file is recognised, else 0.5",
    )
    std: tuple[float, float, float] | None = Field(None, description="as `mean`")
    num_heads: int | None = Field(
        None, ge=1, description="for a timm-format file whose heads are not 64 wide"
    )
    pooling: Literal["mean", "first", "last", "max"] | None = Field(
        None,
        description="for texts: how the outputs over a text's tokens become its feature; default: "
        "as a checkpoint of sentence-transformers says, else their mean",
    )
    tokens: Literal["float32", "float16", "none"] = Field(
        "float32",
        description="how the tokens below the first adapted layer are kept: exactly, in half the "
        "room, or computed anew each time; see adapter.layers",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="of the products in the adapted layers: bfloat16 is up to twice as fast on "
        "processors and cards that know it; all else stays float32",
    )

    @model_validator(mode="before")
    @classmethod
    def _numbers_of_names(cls, given: Any) -> Any:
        """`mean = "imagenet"` stands for both its mean and its std."""
        if not isinstance(given, dict):
            return given
        named = [v for v in (given.get("mean"), given.get("std")) if isinstance(v, str)]
        for name in named:
            if name not in NAMED:
                raise ValueError(
                    f"mean and std are three numbers or one of {', '.join(NAMED)}, not {name!r}"
                )
        for key in ("mean", "std") if named else ():
            value = given.get(key, named[0])
            given = {**given, key: NAMED[value][key] if isinstance(value, str) else value}
        return given


class TrainingConfig(LocalTraining, LossConfig, AugmentationConfig):
    """[training]: local training; [methods.NAME] overrides it for one method."""

    head_lr: float | None = Field(
        2.0,
        gt=0,
        description="rate of the heads; a method with an `lr` of its own keeps the ratio of the "
        "two; paper: as `lr`",
    )
    head: HeadKind = Field(
        "both",
        description="for methods with private heads (pfedseq, fedrep, pfedhn, pfedla, pefll): a "
        "`private` head of each client's own, a `common` one for all, or the sum of a common and a "
        "private part; paper: private",
    )
    batch_size: int = Field(8, ge=1, description="paper: 32")
    examples_per_round: int | None = Field(
        None,
        ge=1,
        description="how many of its training examples a client draws for a round, for short "
        "rounds on much data; default and paper: all",
    )


class EngineConfig(BaseConfig):
    """[engine]: devices, threads and memory; results change by rounding at most."""

    kind: Literal["local", "wire"] = Field(
        "local", description="in this process, or with every message turned into bytes and back"
    )
    clients_per_pass: int = Field(
        0,
        ge=0,
        description="clients whose batches go through the backbone in one pass; 1: none together; "
        "0: about 40 images, 64 on a card, and a group of clients for each core or card; changes "
        "the last bits",
    )
    threads: int = Field(
        0, ge=0, description="groups of clients side by side; 0: one per core or card"
    )
    threads_per_client: int = Field(
        1, ge=1, description="PyTorch's threads within a pass; changes the last bits"
    )
    states: Literal["memory", "disk"] = Field(
        "memory", description="where clients' memories wait for the next round; disk: for many"
    )
    device: str | tuple[str, ...] = Field(
        "auto",
        description="where tensors live: cpu, mps, cuda (all graphics cards) or cuda:1, or a list "
        "such as cuda:0,cuda:2, each of which takes a share of the clients; auto: all cards, or "
        "the best there is",
    )

    @field_validator("device", mode="before")
    @classmethod
    def _known_devices(cls, given: Any) -> Any:
        """Split `a,b` into a list of device names."""
        names = given.split(",") if isinstance(given, str) else given
        if not isinstance(names, list | tuple) or not names:
            raise ValueError("a device's name, or a list of them, is needed")
        names = tuple(str(name).strip() for name in names)
        for name in names:
            if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
                raise ValueError(f"{name!r} is none of 'auto', 'cpu', 'cuda', 'cuda:0' … and 'mps'")
        return names if len(names) > 1 else names[0]


class FlowerConfig(BaseConfig):
    """[flower]: sites on other machines, reached through Flower; see docs/howto/deploying.md."""

    sites: int | None = Field(
        None, ge=1, description="sites to wait for before round 1; default: data.num_clients"
    )
    start_seconds: float = Field(
        600, gt=0, description="how long to wait for the sites before round 1"
    )
    answer_seconds: float = Field(
        3600, gt=0, description="after which a site that has not answered counts as absent"
    )
    classes: Literal["same", "merge"] = Field(
        "same",
        description="where sites' own data have other classes: refuse them, or tell apart all "
        "classes that any site has, by name",
    )
    max_reply_mb: float = Field(
        64, gt=0, description="a site's reply of more megabytes is refused before it is unpacked"
    )
    newcomers: bool = Field(
        True, description="let in sites that come once round 1 has begun, with the next round"
    )


class PluginConfig(BaseConfig):
    """[[plugins]]: a Python file with a user's method, data set, encoder or measure."""

    file: str = Field(description="its path")
    sha256: str | None = Field(
        None, description="checksum of its content, so that a resumed run has the same"
    )

    @model_validator(mode="before")
    @classmethod
    def _path_alone(cls, given: Any) -> Any:
        return {"file": str(given)} if isinstance(given, str | Path) else given
