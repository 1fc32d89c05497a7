"""The `[adapter]` section; apart from `adapters.py`, so that a config loads no model code."""

from typing import Literal, Self

from pydantic import Field, model_validator

from pfedseq.base_config import BaseConfig

Target = Literal["query", "key", "value", "output", "mlp_in", "mlp_out"]


class AdapterConfig(BaseConfig):
    """The adapter that every backbone layer carries."""

    kind: Literal["lora", "dora", "ia3"] = Field(
        "lora", description="LoRA; DoRA, which also learns each row's length; IA3, scales alone"
    )
    rank: int = Field(
        2, ge=1, description="LoRA's rank r; 2 on query and value is the paper's 73k; not for ia3"
    )
    alpha: float = Field(
        2.0, gt=0, description="LoRA's α; the update is scaled by α / r; not for ia3"
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="share of LoRA's inputs dropped in training; not for ia3"
    )
    targets: tuple[Target, ...] = Field(
        ("query", "value"), min_length=1, description="projections that carry the adapter"
    )

    @model_validator(mode="after")
    def _ia3_drops_nothing(self) -> Self:
        if self.kind == "ia3" and self.dropout:
            raise ValueError("kind = 'ia3' has no low-rank path to drop from: remove dropout")
        return self
