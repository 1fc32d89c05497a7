"""The `[adapter]` section; apart from `lora.py` so that reading a config loads no model code."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Target = Literal["query", "key", "value", "output", "mlp_in", "mlp_out"]


class AdapterConfig(BaseModel):
    """The adapter that every backbone layer carries."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int = Field(2, ge=1, description="LoRA's rank r; 2 on query and value is the paper's 73k")
    alpha: float = Field(2.0, gt=0, description="LoRA's α; the update is scaled by α / r")
    targets: tuple[Target, ...] = Field(
        ("query", "value"), min_length=1, description="projections that carry LoRA"
    )
