"""BEiT: relative positions as a bias of attention; the pooled output is the feature."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import BeitModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from pfedseq.errors import InputError
from pfedseq.model.adapters import VIT, Places
from pfedseq.model.encoders.family import Family, pooler_output
from pfedseq.model.encoders.timm import (
    PATCHES,
    TimmFile,
    TimmNaming,
    WeightRule,
    block_rules,
    renamed,
    same,
    scale_rules,
)
from pfedseq.model.geometry import check_divides


class BeitFamily(Family):
    """BEiT, whose attention bias depends on the image size, which tokens do not reveal."""

    def resize(self, model: Any, image_size: int, name: str) -> None:
        """Do nothing: every block interpolates its own table."""
        check_divides(int(model.config.patch_size), image_size, name)

    def run(self, model: Any, inputs: Tensor, image_size: int) -> Any:
        """Transformers' forward on pixels; its blocks, norm and pooler on tokens."""
        if inputs.dim() == 4:
            return model(pixel_values=inputs)
        bias, shared = None, model.shared_position_bias
        if shared is not None:
            side = image_size // int(model.config.patch_size)
            bias = shared((side, side), dim_size=inputs.shape[1])
        for block in model.layers:
            inputs = block(inputs, attention_mask=bias, resolution=(image_size, image_size))
        tokens = model.layernorm(inputs)
        return BaseModelOutputWithPooling(
            last_hidden_state=tokens, pooler_output=model.pooler(tokens)
        )

    def options(self, config: Any) -> tuple[object, ...]:
        """The common options and the kinds of positions used."""
        keys = ("use_relative_position_bias", "use_shared_relative_position_bias")
        return (*super().options(config), *(getattr(config, key) for key in keys))


PLACES = Places(VIT.modules, "layers")
_TABLE = "blocks.0.attn.relative_position_bias_table"


def _settings(file: TimmFile) -> dict[str, Any]:
    distances, heads = file.tensors[_TABLE].shape  # (2 side − 1)² + 3 distances
    side = (math.isqrt(distances - 3) + 1) // 2
    if (2 * side - 1) ** 2 + 3 != distances:
        raise InputError(
            f"{file.path} has a table of {distances} relative positions, which are no square grid"
        )
    geometry = file.geometry(heads)
    return {
        **geometry,
        "image_size": side * geometry["patch_size"],
        "layer_norm_eps": 1e-6,
        "use_relative_position_bias": True,
    }


def _rules(file: TimmFile) -> list[WeightRule]:
    table = "relative_position_bias.relative_position_bias_table"
    return [
        WeightRule("cls_token", 3, ("embeddings.cls_token",), same),
        *renamed(PATCHES, "embeddings.patch_embeddings.projection", 4),
        *renamed("fc_norm", "pooler.layernorm", 1),
        *block_rules(PLACES, file.depth, file.tensors),
        *scale_rules(PLACES, file.depth, "lambda_1", "lambda_2"),
        *(
            WeightRule(
                f"blocks.{i}.attn.relative_position_bias_table", 2, (f"layers.{i}.{table}",), same
            )
            for i in range(file.depth)
        ),
    ]


def _without_indices(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out the numbering of relative positions, which follows from the grid."""
    return {k: v for k, v in tensors.items() if not k.endswith(".relative_position_index")}


FAMILY = BeitFamily(
    title="BEiT",
    model_types=("beit",),
    example="microsoft/beit-base-patch16-224",
    unit="image",
    places=PLACES,
    above=("layernorm",),
    pool=pooler_output,
    timm=TimmNaming(
        title="BEiT",
        sign=lambda tensors: _TABLE in tensors and "cls_token" in tensors,
        model=BeitModel,
        prepare=_without_indices,
        settings=_settings,
        rules=_rules,
        normalisation="half",
    ),
)
