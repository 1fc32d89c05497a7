"""The `[adapter]` section, separate from `adapters.py` so that a config loads no model code."""

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from pfedseq.base_config import BaseConfig
from pfedseq.errors import InputError

IA3_SCALE = 8.0
"""Used in place of α / r, which IA3 does not have, when rates are divided by its square."""

Target = Literal["query", "key", "value", "qkv", "output", "mlp_in", "mlp_gate", "mlp_out"]
"""`qkv` is one projection for query, key and value; `mlp_gate` exists if the MLP has a gate."""


class AdapterConfig(BaseConfig):
    """The adapter, the same in every backbone layer that carries one."""

    kind: Literal["lora", "dora", "ia3"] = Field(
        "lora",
        description="LoRA; DoRA, which also learns each row's length; IA3, which only scales",
    )
    rank: int = Field(
        4, ge=1, description="LoRA's rank r; paper: 2, its 73k parameters on a ViT-B; not for ia3"
    )
    alpha: float = Field(
        32.0,
        gt=0,
        description="LoRA's α: its product is scaled by α / r, and its factor A learns (α / r)² "
        "times more slowly than B; not stated in the paper, 2 in its presets here; not for ia3",
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="share of LoRA's inputs dropped in training; not for ia3"
    )
    targets: tuple[Target, ...] = Field(
        ("query", "value"), min_length=1, description="projections that carry the adapter"
    )

    layers: str | tuple[int, ...] = Field(
        "all",
        description="backbone layers that carry the adapter: all, `last N`, or a list counted from "
        "0; layers below the first one are computed once per example",
    )

    start: str | None = Field(
        None,
        description="a PEFT folder whose adapter, of the kind given here, all clients start "
        "from; `pfedseq import` writes this section",
    )
    start_head: bool = Field(
        False, description="also start from its head; its classes must be those of the data"
    )
    start_sha256: str | None = Field(
        None, description="checksum of its weights, which a resumed run verifies"
    )

    @property
    def scale(self) -> float:
        """α / r, which multiplies LoRA's product; a training rate is divided by its square."""
        return IA3_SCALE if self.kind == "ia3" else self.alpha / self.rank

    @model_validator(mode="after")
    def _ia3_drops_nothing(self) -> Self:
        if self.kind == "ia3" and self.dropout:
            raise ValueError("kind = 'ia3' has no low-rank path to drop from: remove dropout")
        return self

    @model_validator(mode="after")
    def _layers_are_named(self) -> Self:
        chosen = self.layers
        if isinstance(chosen, str):
            named = chosen == "all" or re.fullmatch(r"last [1-9]\d*", chosen) is not None
        else:
            named = bool(chosen) and list(chosen) == sorted({*chosen}) and chosen[0] >= 0
        if not named:
            raise ValueError(
                f"layers must be 'all', 'last N' or a rising list of layers from 0, not {chosen!r}"
            )
        return self

    def layers_of(self, depth: int) -> tuple[int, ...]:
        """The layers, counted from 0, that carry the adapter in a backbone of `depth` of them."""
        if self.layers == "all":
            return tuple(range(depth))
        if isinstance(self.layers, str):
            chosen = tuple(range(depth - int(self.layers.removeprefix("last ")), depth))
        else:
            chosen = self.layers
        if chosen[0] < 0 or chosen[-1] >= depth:
            raise InputError(
                f"adapter.layers = {self.layers!r} does not fit the backbone, which has {depth} "
                f"layers (0 to {depth - 1})"
            )
        return chosen
