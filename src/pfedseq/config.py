"""A run as a TOML file: read, checked against unknown keys and wrong values, saved resolved."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import tomli_w
from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pfedseq.base_config import BaseConfig
from pfedseq.data.auxiliary import AuxiliaryConfig
from pfedseq.data.config import DataConfig
from pfedseq.engines.conditions import FederationConfig
from pfedseq.engines.privacy import PrivacyConfig
from pfedseq.errors import InputError
from pfedseq.federation import MethodConfig
from pfedseq.measures import ALWAYS, MEASURES
from pfedseq.methods import METHODS, find_method
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.geometry import quick_image_size
from pfedseq.model.normalisation import NAMED
from pfedseq.plugins import load_file
from pfedseq.presets import find_config, is_preset
from pfedseq.relative_paths import write_out_paths
from pfedseq.training.augmentations import AugmentationConfig
from pfedseq.training.config import HeadKind, LocalTraining
from pfedseq.training.loss import LossConfig

Model = TypeVar("Model", bound=BaseModel)


class RunConfig(BaseConfig):
    """[run]: what is run, and for how long."""

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
        """Measures that are known here, unless one only looks at somebody's results."""
        for name in names if not (info.context or {}).get("only_look") else ():
            if name not in MEASURES:
                raise ValueError(f"there is no measure {name!r}: known are {', '.join(MEASURES)}")
        return names

    @property
    def each_evaluation(self) -> tuple[str, ...]:
        """The measures of every evaluation, each once."""
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
    """[training]: local training, for every method that does not say otherwise."""

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
    """[engine]: where and how it runs; beyond rounding nothing here changes a result."""

    kind: Literal["local", "wire"] = Field(
        "local", description="in this process, or with every message turned into bytes and back"
    )
    cohort: int = Field(
        0,
        ge=0,
        description="clients whose batches go through the backbone in one pass; 1: none together; "
        "0: about 40 images, 64 on a card, and a cohort for each core or card; changes the last "
        "bits",
    )
    threads: int = Field(0, ge=0, description="cohorts side by side; 0: one per core or card")
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
        """One name, or several: `a,b` is read as a list."""
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
    """[[plugins]]: a Python file with a method or another thing of one's own."""

    file: str = Field(description="its path")
    sha256: str | None = Field(
        None, description="checksum of its content, so that a resumed run has the same"
    )

    @model_validator(mode="before")
    @classmethod
    def _path_alone(cls, given: Any) -> Any:
        return {"file": str(given)} if isinstance(given, str | Path) else given


class Config(BaseConfig):
    """The config of a whole run; one field per section of the TOML file."""

    plugins: tuple[PluginConfig, ...] = Field(
        (), description="Python files that the run needs; --plugin FILE adds one"
    )
    run: RunConfig = RunConfig()
    data: DataConfig = DataConfig()
    auxiliary: AuxiliaryConfig = AuxiliaryConfig()
    model: ModelConfig = ModelConfig()
    adapter: AdapterConfig = AdapterConfig()
    training: TrainingConfig = TrainingConfig()
    methods: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="[methods.NAME]: a method's own options"
    )
    engine: EngineConfig = EngineConfig()
    federation: FederationConfig = FederationConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    flower: FlowerConfig = FlowerConfig()

    @model_validator(mode="after")
    def _noise_is_not_rounded(self) -> Self:
        if self.privacy.noise is not None and self.federation.payload != "float32":
            raise ValueError(
                "privacy.noise is added to what clients send in float32: leave federation.payload "
                "out, or the noise"
            )
        return self

    @model_validator(mode="after")
    def _methods_follow_their_clients(self) -> Self:
        if self.federation.members_change:
            for name in self.run.methods:
                if (method := METHODS.get(name)) and (why := method.server.needs_everyone):
                    raise ValueError(
                        f"{name} needs all clients from the first round to the last ({why}): leave "
                        "it out, or federation.late_clients, leaving_clients and gone_after"
                    )
        return self

    def method_config(self, name: str) -> MethodConfig:
        """The options of one method: [training]'s, overridden by [methods.NAME]'s."""
        method = find_method(name)
        common = self.training.model_dump(include=set(LocalTraining.model_fields))
        own, where = self.methods.get(name, {}), f"methods.{name}."
        if own.get("optimizer", common["optimizer"]) != common["optimizer"]:
            del common["lr"], common["head_lr"]  # another optimizer's rates mean something else
        elif common["head_lr"] is not None and "lr" in own and "head_lr" not in own:
            lr = _validated(method.config, {**common, **own, "head_lr": None}, where).lr
            common["head_lr"] = lr * self.training.head_ratio
        given = common | own
        scheduled = given["schedule"] != "constant" or given["schedule_warmup"]
        if scheduled and given["schedule_rounds"] is None:
            given["schedule_rounds"] = self.run.rounds
        return _validated(method.config, given, where)

    def advice(self) -> list[str]:
        """Sentences about what is allowed but hardly meant."""
        rounds = self.run.rounds
        return [s for name in self.run.methods for s in self.method_config(name).advice(rounds)]

    def resolved(self) -> Config:
        """The same run with every option written out; refuses what a method does not know."""
        for name in self.methods:
            find_method(name)
        spelt = {name: self._spelt(name) for name in self.run.methods}
        spelt_out = self.model_copy(update={"methods": self.methods | spelt})
        return spelt_out.with_image_size(quick_image_size(self.model.backbone))

    def sized(self) -> Config:
        """The same run with `data.image_size` set, to the backbone's own where it was left out."""
        if self.data.unit != "image" or self.data.image_size is not None:
            return self
        from pfedseq.model.backbone import load_backbone  # takes seconds, and few configs need it

        section = self.model
        return self.with_image_size(
            load_backbone(section.backbone, num_heads=section.num_heads).image_size
        )

    def with_image_size(self, size: int | None) -> Config:
        """The same run with `data.image_size = size`, unless it is set or there are no images."""
        if self.data.unit != "image" or self.data.image_size is not None or size is None:
            return self
        data = DataConfig.model_validate({**self.data.model_dump(), "image_size": size})
        return self.model_copy(update={"data": data})

    def _spelt(self, name: str) -> dict[str, Any]:
        """All options of a method but what it takes over from [training] as that stands there."""
        options, own = self.method_config(name), self.methods.get(name, {})
        if options.optimizer_state == "average":
            self._refuse_averages(name)
        common = set(LocalTraining.model_fields) - {"lr", "local_epochs"} - set(own)
        return options.model_dump(exclude_none=True, exclude=common)  # TOML has no null

    def _refuse_averages(self, name: str) -> None:
        """Say where second moments cannot be averaged."""
        why = ""
        if find_method(name).client.sent_model is None:
            why = f"{name} averages no models, so there are no moments that belong to an average"
        elif self.federation.payload != "float32":
            why = f"it cannot be sent as federation.payload = {self.federation.payload!r}"
        elif self.privacy.noise is not None:
            why = "privacy.noise would make a second moment negative"
        if why:
            raise InputError(
                f"optimizer_state = 'average': {why}; set it to 'keep' or 'reset', or leave that "
                "out"
            )


def load_config(
    path: Path | str, overrides: Sequence[str] = (), plugins: Sequence[Path | str] = ()
) -> Config:
    """Read a TOML file or a preset, apply `section.key=value` overrides, check everything.

    Relative paths in the file count from its folder (or, where nothing is there, from the current
    one); those of overrides and of presets from the current folder. The Python files that it names
    as its plug-ins, and those of `plugins`, are executed.
    """
    values = _read(path)
    given = [*values.pop("plugins", []), *map(str, plugins)]
    values["plugins"] = list({p["file"]: p for p in map(_loaded_plugin, given)}.values())
    return make_config(values, overrides)


def read_config(path: Path | str) -> Config:
    """The config of a run, for those that only look: nothing of it is executed.

    Its methods may be a plug-in's that is not here.
    """
    return _validated(Config, _read(path), "", only_look=True)


def load_plugin(file: Path | str) -> None:
    """Execute a Python file: what it defines is known in this process from now on."""
    load_file(file)


def _loaded_plugin(given: Any) -> dict[str, str]:
    """Execute a file that a config names; its path and checksum."""
    plugin = _validated(PluginConfig, given, "plugins.")
    origin = load_file(plugin.file, plugin.sha256)
    return {"file": origin.place, "sha256": origin.sha256}


def _read(path: Path | str) -> dict[str, Any]:
    path = find_config(path)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no config file {path}") from None
    except OSError as problem:
        raise InputError(f"cannot read config {path}: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise InputError(f"{path} is not valid TOML: {problem}") from None
    values.setdefault("run", {}).setdefault("name", path.stem)
    if not is_preset(path):
        write_out_paths(values, [path.parent, Path()])
    return values


def make_config(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """A config from nested dicts, as TOML would give them; its plug-ins are not executed."""
    merged = _deep_copy(values)
    for override in overrides:
        _apply(merged, override)
    write_out_paths(merged, [Path()])
    return _validated(Config, merged, "").resolved()


def dump_config(config: Config) -> str:
    """The resolved config as TOML; a comment names the options of a section that are not set."""
    values = config.model_dump(mode="json")
    lines = []
    for line in tomli_w.dumps(config.model_dump(mode="json", exclude_none=True)).splitlines():
        lines.append(line)
        section = values.get(line.strip("[]")) if line.startswith("[") else None
        if isinstance(section, dict) and (unset := [k for k, v in section.items() if v is None]):
            lines.append(f"# not set: {', '.join(unset)}")
    return "\n".join(lines) + "\n"


def _deep_copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _deep_copy(v) if isinstance(v, Mapping) else v for k, v in values.items()}


def _apply(values: dict[str, Any], override: str) -> None:
    """Set `a.b.c=value` in nested dicts; the value is read as TOML, or else as a string."""
    key, equals, text = override.partition("=")
    path = key.strip().split(".")
    if not equals or len(path) < 2 or not all(path):
        raise InputError(f"--set {override!r} must look like section.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    table = values
    for name in path[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise InputError(f"--set {override!r}: {name!r} is not a section")
    table[path[-1]] = value


def _validated(model: type[Model], values: Any, where: str, *, only_look: bool = False) -> Model:
    try:
        return model.model_validate(values, context={"only_look": only_look})
    except ValidationError as problem:
        raise InputError(_explain(model, problem.errors(), where)) from None


_OTHER_NAMES = {
    "learning_rate": "lr",
    "epochs": "local_epochs",
    "grad_clip": "clip_norm",
    "gradient_clip": "clip_norm",
    "max_grad_norm": "clip_norm",
    "wd": "weight_decay",
    "decay": "weight_decay",
    "num_rounds": "rounds",
    "clients": "num_clients",
}
"""What other programs call some options."""


def _explain(model: type[BaseModel], errors: Sequence[Any], where: str) -> str:
    """One sentence for pydantic's first complaint, with the nearest key for an unknown one."""
    error = errors[0]
    path = _option_path(model, [str(part) for part in error["loc"]])
    key = where + ".".join(path)
    if error["type"] == "extra_forbidden":
        known = _fields_at(model, path[:-1])
        other = _OTHER_NAMES.get(path[-1])
        near = [other] if other in known else get_close_matches(path[-1], known, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        return f"unknown config key {key!r}: {hint}"
    same = [e for e in errors if _option_path(model, [str(part) for part in e["loc"]]) == path]
    said = dict.fromkeys(_said(e["msg"]) for e in same)
    message = " or ".join(said).replace(" or input should be ", " or ")
    if not path:
        return f"config section {where.rstrip('.') or 'root'}: {message}"
    return f"config key {key} = {error['input']!r}: {message}"


def _said(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return message[0].lower() + message[1:]


def _option_path(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """Where an option is, without what pydantic says of a union's members behind it."""
    kept: list[str] = []
    for part in path:
        kept.append(part)
        field = model.model_fields.get(part)
        annotation = field.annotation if field is not None else None
        if not isinstance(annotation, type) or not issubclass(annotation, BaseModel):
            break
        model = annotation
    return kept


def _fields_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for name in path:
        field = model.model_fields.get(name)
        if field is None or not isinstance(field.annotation, type):
            return []
        model = field.annotation
    return list(model.model_fields)
