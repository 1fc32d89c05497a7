"""The options of local training."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from pfedseq.base_config import BaseConfig
from pfedseq.training.rules import RULES
from pfedseq.training.schedules import SCHEDULES


class LocalTraining(BaseConfig):
    """How a client trains: [training] says it for all methods, [methods.NAME] for one."""

    lr: float = Field(0.005, gt=0, description="η, rate of local SGD; paper: 0.005, Omniglot 0.05")
    head_lr: float | None = Field(
        None,
        gt=0,
        description="rate of the heads where `lr` is that of the adapters; a method with an `lr` "
        "of its own keeps their ratio; default and paper: as `lr`",
    )
    local_epochs: int = Field(1, ge=1, description="passes over the local data a round; paper: 1")
    optimizer: str = Field("sgd", description="`sgd` or `adamw`; paper: sgd")
    momentum: float = Field(0.0, ge=0, lt=1, description="of SGD, such as 0.9; paper: 0")
    nesterov: bool = Field(False, description="Nesterov's momentum in place of the plain one")
    betas: tuple[float, float] = Field(
        (0.9, 0.999), description="β₁ and β₂, what AdamW keeps of its two moments at each step"
    )
    epsilon: float = Field(1e-8, gt=0, description="ε of AdamW")
    weight_decay: float = Field(
        0.0, ge=0, description="SGD: decay · φ is added to the gradient; AdamW: decoupled from it"
    )
    clip_norm: float | None = Field(
        None, gt=0, description="longest gradient of a step, adapter and head together; none: any"
    )
    optimizer_state: Literal["reset", "keep", "average"] = Field(
        "reset",
        description="momentum and moments between rounds: begun anew, kept at the client, or "
        "AdamW's second moments averaged by the server (FedAdamW)",
    )
    schedule: str = Field(
        "constant", description="of the rates over rounds: `constant`, `cosine`, `linear`, `step`"
    )
    schedule_rounds: int | None = Field(
        None, ge=1, description="rounds until the schedule ends; default: run.rounds"
    )
    schedule_warmup: int = Field(
        0, ge=0, description="first rounds, in which the rates rise linearly to their full size"
    )
    schedule_floor: float = Field(
        0.0, ge=0, le=1, description="share of the rates at the end of `cosine` and `linear`"
    )
    schedule_every: int = Field(20, ge=1, description="rounds between two drops of `step`")
    schedule_factor: float = Field(
        0.5, gt=0, le=1, description="what each drop of `step` multiplies the rates by"
    )

    @field_validator("optimizer", "schedule")
    @classmethod
    def _known(cls, given: str, info: ValidationInfo) -> str:
        known = RULES if info.field_name == "optimizer" else SCHEDULES
        if given not in known:
            raise ValueError(f"it is none of {', '.join(known)}")
        return given

    @field_validator("betas")
    @classmethod
    def _shares(cls, given: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in given):
            raise ValueError("β₁ and β₂ must be at least 0 and less than 1")
        return given

    @model_validator(mode="after")
    def _options_fit_together(self) -> Self:
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

    def rates(self, lr: float) -> tuple[float, float]:
        """Of adapters and heads, for a step of the method's own whose rate is `lr`."""
        return lr, lr * self.head_ratio
