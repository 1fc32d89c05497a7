"""DeiT with a distillation token: a ViT with one more token; the class token is the feature.

DeiTs without that token are called `vit` in their config.json.
"""

from typing import Any

from torch import Tensor, nn
from transformers import DeiTModel

from pfedseq.model.adapters import VIT
from pfedseq.model.encoders.family import Family, blocks_and_norm
from pfedseq.model.encoders.positions import resample_positions
from pfedseq.model.encoders.timm import (
    PATCHES,
    TimmFile,
    TimmNaming,
    WeightRule,
    block_rules,
    renamed,
    same,
)


class DeitFamily(Family):
    """DeiT, with a table of positions."""

    def resize(self, model: nn.Module, image_size: int, name: str) -> None:
        """Interpolate the positions."""
        resample_positions(model, image_size, name)

    def run(self, model: nn.Module, inputs: Tensor, image_size: int) -> Any:
        """Transformers' forward on pixels; its blocks and norm on tokens."""
        whole = inputs.dim() == 4
        return model(pixel_values=inputs) if whole else blocks_and_norm(model, inputs)


def _settings(file: TimmFile) -> dict[str, Any]:
    geometry = file.geometry()
    return {
        **geometry,
        "image_size": file.side(before=2) * geometry["patch_size"],
        "layer_norm_eps": 1e-6,
        "qkv_bias": "blocks.0.attn.qkv.bias" in file.tensors,
    }


def _rules(file: TimmFile) -> list[WeightRule]:
    return [
        WeightRule("cls_token", 3, ("embeddings.cls_token",), same),
        WeightRule("dist_token", 3, ("embeddings.distillation_token",), same),
        WeightRule("pos_embed", 3, ("embeddings.position_embeddings",), same),
        *renamed(PATCHES, "embeddings.patch_embeddings.projection", 4),
        *renamed("norm", "layernorm", 1),
        *block_rules(VIT, file.depth, file.tensors),
    ]


FAMILY = DeitFamily(
    title="DeiT",
    model_types=("deit",),
    example="facebook/deit-base-distilled-patch16-224",
    unit="image",
    places=VIT,
    above=("layernorm",),
    load_options={"add_pooling_layer": False},
    timm=TimmNaming(
        title="DeiT with a distillation token",
        sign=lambda tensors: "dist_token" in tensors,
        model=DeiTModel,
        settings=_settings,
        rules=_rules,
        normalisation="imagenet",
        dropped=("head.", "head_dist."),
    ),
)
