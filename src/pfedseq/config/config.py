"""The config of a whole run, and the checks that involve several sections."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from pfedseq.base_config import BaseConfig
from pfedseq.config.sections import (
    EngineConfig,
    FlowerConfig,
    ModelConfig,
    PluginConfig,
    RunConfig,
    TrainingConfig,
)
from pfedseq.config.validation import validated
from pfedseq.data.auxiliary import AuxiliaryConfig
from pfedseq.data.config import DataConfig, unit_of
from pfedseq.data.framing import Framing
from pfedseq.engines.conditions import FederationConfig
from pfedseq.engines.privacy import PrivacyConfig
from pfedseq.errors import InputError
from pfedseq.federation import MethodConfig
from pfedseq.methods import METHODS, find_method
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.geometry import quick_image_size
from pfedseq.model.processor import stated_framing
from pfedseq.training.config import LocalTraining


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

    @model_validator(mode="before")
    @classmethod
    def _headline_of_the_data(cls, given: Any) -> Any:
        """Language models have no accuracy: their headline is the perplexity."""
        if not isinstance(given, dict) or not isinstance(given.get("run", {}), dict):
            return given
        data = given.get("data", {})
        name = data.get("name") if isinstance(data, dict) else getattr(data, "name", None)
        if unit_of(name) != "dialogue":
            return given
        return {**given, "run": {"headline": "perplexity", **given.get("run", {})}}

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

    @model_validator(mode="after")
    def _methods_suit_the_adapter(self) -> Self:
        for name in self.run.methods:
            if (method := METHODS.get(name)) and self.adapter.kind not in method.adapters:
                raise ValueError(
                    f"{name} works on LoRA's two factors and not with adapter.kind = "
                    f"{self.adapter.kind!r}: leave it out, or set adapter.kind to "
                    f"{method.adapters[0]!r}"
                )
        return self

    @model_validator(mode="after")
    def _methods_send_updates_where_noise_is_added(self) -> Self:
        for name in self.run.methods if self.privacy.noise is not None else ():
            if (method := METHODS.get(name)) and not method.client.sends_updates:
                raise ValueError(
                    f"privacy.noise cannot be added with {name}: what its clients send is not an "
                    "update of what they were sent; leave the method out, or privacy.noise"
                )
        return self

    @model_validator(mode="after")
    def _noise_covers_the_rate(self) -> Self:
        if self.privacy.noise is not None and self.wants_rate:
            raise ValueError(
                "training.lr = 'auto' tests rates on training data without noise, which the "
                "guarantee of privacy.noise does not cover: set a number, or leave the noise out"
            )
        return self

    def method_config(self, name: str) -> MethodConfig:
        """The options of one method: [training]'s, overridden by [methods.NAME]'s."""
        method = find_method(name)
        common = self.training.model_dump(include=set(LocalTraining.model_fields))
        own, where = self.methods.get(name, {}), f"methods.{name}."
        if own.get("optimizer", common["optimizer"]) != common["optimizer"]:
            del common["lr"], common["head_lr"]  # rates do not carry over between optimizers
        elif common["head_lr"] is not None and "lr" in own and "head_lr" not in own:
            lr = validated(method.config, {**common, **own, "head_lr": None}, where).lr
            common["head_lr"] = lr * self.training.head_ratio
        given = common | own
        scheduled = given["schedule"] != "constant" or given["schedule_warmup"]
        if scheduled and given["schedule_rounds"] is None:
            given["schedule_rounds"] = self.run.rounds
        return validated(method.config, given, where)

    @property
    def wants_rate(self) -> bool:
        """Whether a range test must find the rate of a method before round 1."""
        given = [self.methods.get(name, {}) for name in self.run.methods]
        common = self.training.optimizer
        inherited = ("lr" not in own and own.get("optimizer", common) == common for own in given)
        return self.training.rate_test == "wanted" and any(inherited)

    def at_rate(self, lr: float) -> Config:
        """The same run with the `training.lr` that a range test found."""
        return self.model_copy(update={"training": self.training.at_rate(lr)}).resolved()

    def advice(self) -> list[str]:
        """Warnings about options that are valid but probably unintended."""
        rounds = self.run.rounds
        return [s for name in self.run.methods for s in self.method_config(name).advice(rounds)]

    def resolved(self) -> Config:
        """The same run with every option resolved; refuses options unknown to a method."""
        for name in self.methods:
            find_method(name)
        spelt = {name: self._spelt(name) for name in self.run.methods}
        spelt_out = self.model_copy(update={"methods": self.methods | spelt})
        return spelt_out.with_image_size(quick_image_size(self.model.backbone))

    def sized(self) -> Config:
        """The same run with `data.image_size` set, by default to the backbone's."""
        if self.data.unit != "image":
            return self
        name, heads = self.model.backbone, self.model.num_heads
        sized = self
        if self.data.image_size is None:
            from pfedseq.model.backbone import load_backbone  # takes seconds, few configs need it

            sized = self.with_image_size(load_backbone(name, num_heads=heads).image_size)
        data = sized.data
        if data.name == "digits" or (data.interpolation and data.resize):
            return sized
        return sized._with_framing(stated_framing(name, data.side))

    def sized_as(self, data: DataConfig) -> Config:
        """The same run with the image size and framing of `data`, where it sets none."""
        sized = self.with_image_size(data.image_size)
        return sized if sized.data.unit != "image" else sized._with_framing(data.framing)

    def with_image_size(self, size: int | None) -> Config:
        """The same run with `data.image_size = size`, unless it is set or there are no images."""
        if self.data.unit != "image" or self.data.image_size is not None or size is None:
            return self
        return self._with_data({"image_size": size})

    def _with_framing(self, framing: Framing) -> Config:
        """The same run with what differs from the default, unless it is set."""
        found, data = framing.differences(), self.data
        unset = [] if data.interpolation else ["interpolation"]
        unset += [] if data.resize else ["resize", "resize_to"]
        filled = {key: found[key] for key in unset if key in found}
        if "resize_to" in filled:
            filled["resize"] = framing.resize
        return self._with_data(filled) if filled else self

    def _with_data(self, filled: dict[str, Any]) -> Config:
        data = DataConfig.model_validate({**self.data.model_dump(), **filled})
        return self.model_copy(update={"data": data})

    def _spelt(self, name: str) -> dict[str, Any]:
        """A method's options except those inherited unchanged from [training]."""
        options, own = self.method_config(name), self.methods.get(name, {})
        if options.optimizer_state == "average":
            self._refuse_averages(name)
        spelt = {"local_epochs"} if self.training.rate_test == "wanted" else {"lr", "local_epochs"}
        common = set(LocalTraining.model_fields) - spelt - set(own)
        return options.model_dump(exclude_none=True, exclude=common)  # TOML has no null

    def _refuse_averages(self, name: str) -> None:
        """Refuse `optimizer_state = "average"` where second moments cannot be averaged."""
        why = ""
        if find_method(name).client.sent_model is None:
            why = f"{name} averages no whole models, so no moments belong to an average"
        elif self.federation.payload != "float32":
            why = f"it cannot be sent as federation.payload = {self.federation.payload!r}"
        elif self.privacy.noise is not None:
            why = "privacy.noise would make a second moment negative"
        if why:
            raise InputError(
                f"optimizer_state = 'average': {why}; set it to 'keep' or 'reset', or leave that "
                "out"
            )
