"""Config sections without a package of their own: run, model, training, engine, …"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from pfedseq.base_config import BaseConfig
from pfedseq.measures import ALWAYS, MEASURES
from pfedseq.model.normalisation import NAMED
from pfedseq.training.augmentations import AugmentationConfig
from pfedseq.training.config import HeadKind, LocalTraining
from pfedseq.training.loss import LossConfig


class RunConfig(BaseConfig):
    """[run]: methods, rounds, seed and evaluation."""

    name: str = Field(
        "run", pattern=r"^[\w.-]+$", description="name of the run, part of its default folder"
    )
    methods: tuple[str, ...] = Field(("pfedseq",), min_length=1, description="methods, in order")
    rounds: int = Field(80, ge=1, description="number of communication rounds; paper: 80")
    seed: int = Field(0, ge=0, description="seed of partitions, initial weights and batch orders")
    evaluate_every: int = Field(
        1, ge=1, description="rounds between two evaluations; the last round always has one"
    )
    checkpoint_every: int = Field(1, ge=1, description="rounds between two checkpoints")
    headline: str = Field(
        "accuracy",
        description="the measure that ranks methods, trials and rounds (default for dialogues: "
        f"perplexity): {', '.join(MEASURES)}",
    )
    measures: tuple[str, ...] = Field(
        (),
        description="further measures of every evaluation besides accuracy, loss and the headline; "
        "after the last round all measures are computed",
    )
    keep: Literal["last", "best_on_validation"] = Field(
        "last",
        description="which models the clients keep: those of the last round, or of the round with "
        "the best mean headline on validation data",
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="stop a method after this many evaluations without a better mean headline on "
        "validation data; default: never",
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
        description="mean of the inputs in [0, 1], or `imagenet`, `half` or `clip` for both; "
        "default: the backbone's, or 0.5 if it is unknown",
    )
    std: tuple[float, float, float] | None = Field(
        None, description="standard deviation of the inputs, like `mean`"
    )
    num_heads: int | None = Field(
        None, ge=1, description="attention heads of a timm-format file, if not as timm has them"
    )
    pooling: Literal["mean", "first", "last", "max"] | None = Field(
        None,
        description="for texts: how the outputs of a text's tokens are pooled to its feature; "
        "default: as in the sentence-transformers checkpoint, otherwise their mean",
    )
    tokens: Literal["float32", "float16", "none"] = Field(
        "float32",
        description="how outputs of the frozen layers below the first adapter are cached: exactly, "
        "in half the space, or not at all; see adapter.layers",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="precision of matrix products in the adapted layers: bfloat16 is up to twice "
        "as fast on hardware that supports it; everything else stays float32",
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

    rate_test: Literal["off", "wanted", "done"] = Field(
        "off",
        description="set by lr = 'auto': before round 1 a range test finds `lr`, and the heads' "
        "rate keeps its ratio to it; done: `lr` was found so",
    )

    head_lr: float | None = Field(
        2.0,
        gt=0,
        description="learning rate of the heads; a method that sets its own `lr` keeps the ratio; "
        "paper: as `lr`",
    )
    head: HeadKind = Field(
        "both",
        description="for methods with private heads (pfedseq, fedrep, pfedhn, pfedla, pefll): a "
        "`private` head per client, a `common` one for all, or the sum of a common and a private "
        "part (`both`); paper: private",
    )
    head_momentum: float = Field(
        0.8,
        ge=0,
        lt=1,
        description="with head = 'both' or 'common', the server's momentum for the common part",
    )
    max_step: float = Field(
        4.0,
        ge=0,
        description="bound on the length of an SGD step, `lr` times gradient, adapter and head "
        "together, before momentum and weight decay, in the units of `rate_units` (model: as a "
        "change of weights and, divided by √classes, of logits); 0: no bound; paper: 0",
    )
    batch_size: int = Field(8, ge=1, description="examples per local step; paper: 32")
    examples_per_round: int | None = Field(
        None,
        ge=1,
        description="number of training examples that a client samples for a round, for short "
        "rounds on large data sets; default and paper: all",
    )

    @model_validator(mode="before")
    @classmethod
    def _lr_to_be_found(cls, given: Any) -> Any:
        """With lr = 'auto', the test starts at the optimizer's default."""
        if not isinstance(given, dict) or given.get("lr") != "auto":
            return given
        return {key: value for key, value in given.items() if key != "lr"} | {"rate_test": "wanted"}

    def at_rate(self, lr: float) -> Self:
        """The same training with the `lr` that was found; the heads' rate keeps its ratio to it."""
        head_lr = None if self.head_lr is None else lr * self.head_ratio
        return self.model_copy(update={"lr": lr, "head_lr": head_lr, "rate_test": "done"})


class EngineConfig(BaseConfig):
    """[engine]: devices, threads and memory; results change by rounding at most."""

    kind: Literal["local", "wire"] = Field(
        "local", description="in this process, or with every message serialised and parsed"
    )
    clients_per_pass: int = Field(
        0,
        ge=0,
        description="clients that share a pass through the backbone; 1: none; 0: as many as fill "
        "about 40 images (64 on a GPU), with a group of clients per core or GPU; changes the "
        "last bits",
    )
    threads: int = Field(
        0, ge=0, description="groups of clients in parallel; 0: one per core or GPU"
    )
    threads_per_client: int = Field(
        1, ge=1, description="PyTorch threads within a pass; changes the last bits"
    )
    states: Literal["memory", "disk"] = Field(
        "memory", description="where clients' states are stored; disk for many clients"
    )
    device: str | tuple[str, ...] = Field(
        "auto",
        description="cpu, mps, cuda (all GPUs) or cuda:1, or a list such as cuda:0,cuda:2 over "
        "which clients are distributed; auto: all GPUs, or the best available device",
    )

    @field_validator("device", mode="before")
    @classmethod
    def _known_devices(cls, given: Any) -> Any:
        """Split `a,b` into a list of device names."""
        names = given.split(",") if isinstance(given, str) else given
        if not isinstance(names, list | tuple) or not names:
            raise ValueError("must be the name of a device, or a list of names")
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
        600, gt=0, description="seconds to wait for the sites before round 1"
    )
    answer_seconds: float = Field(
        3600, gt=0, description="seconds after which a site that has not answered is absent"
    )
    classes: Literal["same", "merge"] = Field(
        "same",
        description="if sites have different classes: refuse them, or use the union of all classes "
        "by name",
    )
    max_reply_mb: float = Field(
        64, gt=0, description="larger replies of a site, in megabytes, are refused unread"
    )
    newcomers: bool = Field(True, description="admit sites that connect after round 1 has started")


class PluginConfig(BaseConfig):
    """[[plugins]]: a Python file with a user's method, data set, encoder or measure."""

    file: str = Field(description="path of the file")
    sha256: str | None = Field(
        None, description="checksum of its content, which a resumed run verifies"
    )

    @model_validator(mode="before")
    @classmethod
    def _path_alone(cls, given: Any) -> Any:
        return {"file": str(given)} if isinstance(given, str | Path) else given
