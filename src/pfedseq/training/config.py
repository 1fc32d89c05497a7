"""The options of local training."""

from __future__ import annotations

from math import inf
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from pfedseq.base_config import BaseConfig
from pfedseq.training.rules import RULES
from pfedseq.training.schedules import SCHEDULES

HeadKind = Literal["private", "common", "both"]


class Units(NamedTuple):
    """Quantities of a model that rates are scaled by, so that one rate suits every model."""

    adapter: float = 1.0
    """α / r: a step of η on LoRA's B changes the adapted weight by η (α/r)² G AᵀA."""
    feature: float = 1.0
    """Length of a feature f: a step of η on the head moves its logits by η |f|² (y − p)."""
    classes: int = 1
    """C: more classes allow a higher head rate; a softmax over C classes starts 1/C as steep."""


PLAIN = Units()
ADAMW_LR = 2e-3
"""Where a search for AdamW's rate starts; SGD's default would be a thousand times too high."""
LARGEST_ADAMW_RATE = 0.1


class LocalTraining(BaseConfig):
    """Options of local training: in [training] for all methods, in [methods.NAME] for one."""

    lr: float = Field(
        2.0,
        gt=0,
        description="η, learning rate of the adapters; `auto`, in [training]: found by a short "
        "test on training data before round 1; paper: 0.005, Omniglot 0.05, both `plain`",
    )
    head_lr: float | None = Field(
        None,
        gt=0,
        description="learning rate of the heads; default: the same ratio to `lr` as in [training]",
    )
    rate_units: Literal["model", "plain"] = Field(
        "model",
        description="model: `lr` is divided by (alpha / rank)², and `head_lr` by |f|² / √classes, "
        "where |f| is the length of the backbone's features, so that both suit every model; plain: "
        "SGD rates unscaled (paper); AdamW rates are never scaled",
    )
    head: HeadKind = Field(
        "private",
        description="kind of head for methods with private heads; default: as in [training]",
    )
    head_keep: float = Field(
        1.0,
        ge=0,
        le=1,
        description="with head = 'both', share of a local change that is kept in the private part",
    )
    head_momentum: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="with head = 'both' or 'common', the server's momentum for the common part; "
        "default: as in [training]",
    )
    local_epochs: int = Field(1, ge=1, description="passes over the local data per round; paper: 1")
    optimizer: str = Field("sgd", description="`sgd` or `adamw`; paper: sgd")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD, such as 0.9; paper: 0")
    nesterov: bool = Field(False, description="use Nesterov momentum")
    betas: tuple[float, float] = Field((0.9, 0.999), description="β₁ and β₂ of AdamW")
    epsilon: float = Field(1e-8, gt=0, description="ε of AdamW")
    weight_decay: float = Field(
        0.0, ge=0, description="SGD: decay · φ is added to the gradient; AdamW: decoupled from it"
    )
    max_step: float = Field(
        0.0,
        ge=0,
        description="bound on the length of an SGD step, `lr` times gradient, adapter and head "
        "together, before momentum and weight decay, in the units of `rate_units` (model: as a "
        "change of weights and, divided by √classes, of logits); 0: no bound; default: as in "
        "[training]",
    )
    clip_norm: float = Field(
        0.0,
        ge=0,
        description="bound on the length of a gradient, adapter and head together, in the units of "
        "`rate_units` (model: the adapter's divided by alpha / rank, the head's by |f|); 0: none",
    )
    optimizer_state: Literal["reset", "keep", "average"] = Field(
        "reset",
        description="optimiser state between rounds: reset, kept at the client, or AdamW's second "
        "moments averaged by the server (FedAdamW)",
    )
    schedule: str = Field(
        "constant",
        description="learning-rate schedule over rounds: `constant`, `cosine`, `linear`, `step`",
    )
    schedule_rounds: int | None = Field(
        None, ge=1, description="rounds until the schedule ends; default: run.rounds"
    )
    schedule_warmup: int = Field(0, ge=0, description="rounds of linear warm-up of the rates")
    schedule_floor: float = Field(
        0.0,
        ge=0,
        le=1,
        description="final rate of `cosine` and `linear`, as a share of the full rate",
    )
    schedule_every: int = Field(20, ge=1, description="rounds between two drops of `step`")
    schedule_factor: float = Field(
        0.5, gt=0, le=1, description="factor of the rates at each drop of `step`"
    )

    @model_validator(mode="before")
    @classmethod
    def _default_rates_of_adamw(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("optimizer") == "adamw":
            return {"lr": ADAMW_LR, "head_lr": given.get("lr", ADAMW_LR), **given}
        return given

    @field_validator("optimizer", "schedule")
    @classmethod
    def _known(cls, given: str, info: ValidationInfo) -> str:
        known = RULES if info.field_name == "optimizer" else SCHEDULES
        if given not in known:
            raise ValueError(f"choose one of {', '.join(known)}")
        return given

    @field_validator("betas")
    @classmethod
    def _shares(cls, given: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in given):
            raise ValueError("β₁ and β₂ must be at least 0 and less than 1")
        return given

    @model_validator(mode="after")
    def _options_fit_together(self) -> Self:
        if self.optimizer == "adamw" and max(self.rates(self.lr)) > LARGEST_ADAMW_RATE:
            raise ValueError(
                "AdamW changes every parameter by up to its rate per step, and "
                f"{max(self.rates(self.lr)):g} is a rate for SGD: set lr and head_lr, "
                f"for example to {ADAMW_LR:g}"
            )
        remembers = self.optimizer != "sgd" or self.momentum
        if self.momentum and self.optimizer != "sgd":
            raise ValueError("momentum is an option of sgd; AdamW has betas")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum, such as momentum = 0.9")
        if self.optimizer_state == "keep" and not remembers:
            raise ValueError(
                "optimizer_state = 'keep' has nothing to keep: set momentum, or optimizer = 'adamw'"
            )
        if self.optimizer_state == "average" and self.optimizer != "adamw":
            raise ValueError("optimizer_state = 'average' is for optimizer = 'adamw'")
        if self.schedule_rounds is not None and self.schedule_warmup >= self.schedule_rounds:
            raise ValueError(
                f"schedule_warmup = {self.schedule_warmup} leaves no round of "
                f"{self.schedule_rounds} to the schedule"
            )
        return self

    @property
    def head_ratio(self) -> float:
        """The heads' rate as a multiple of the adapters'."""
        return 1.0 if self.head_lr is None else self.head_lr / self.lr

    @property
    def highest_lr(self) -> float:
        """The highest `lr` that is accepted."""
        return LARGEST_ADAMW_RATE / max(1, self.head_ratio) if self.optimizer == "adamw" else inf

    def rates(self, lr: float, units: Units = PLAIN) -> tuple[float, float]:
        """Rates of adapters and heads for a method-specific step with rate `lr`."""
        if self.rate_units == "plain" or self.optimizer == "adamw":
            units = PLAIN  # AdamW's step has the length of its rate, whatever the gradient
        head = lr * self.head_ratio * units.classes**0.5 / units.feature**2
        return lr / units.adapter**2, head
