"""CLIP's vision tower, alone or from a complete CLIP; the pooled class token is the feature."""

import re
from typing import Any

from torch import nn
from transformers import CLIPVisionModel

from pfedseq.model.adapters import Places
from pfedseq.model.encoders.family import Family, pooler_output
from pfedseq.model.encoders.positions import resample_positions
from pfedseq.model.encoders.timm import (
    PATCHES,
    TimmFile,
    TimmNaming,
    WeightRule,
    block_rules,
    renamed,
    same,
    unbatched,
)

PLACES = Places(
    {
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "output": "self_attn.out_proj",
        "mlp_in": "mlp.fc1",
        "mlp_out": "mlp.fc2",
    },
    "encoder.layers",
)
NORMS = ("layer_norm1", "layer_norm2")
"""The norms before attention and before the MLP."""
_QUICK_GELU = re.compile(
    r"quickgelu|\.(openai|dfn5b|metaclip_400m|metaclip_2pt5b)$|_large_patch14_clip_224\.dfn2b$"
    r"|_huge_patch14_clip_224\.metaclip2_worldwide$|_base_patch32_clip_224\.laion400m_e32$"
)
"""timm's names of weights that were trained with QuickGELU.

Those without `quickgelu` in their names are the same weights; timm computes them with GELU, and
says so in a note.
"""


class ClipFamily(Family):
    """CLIP's vision tower, with a table of positions."""

    def resize(self, model: nn.Module, image_size: int, name: str) -> None:
        """Interpolate the positions."""
        resample_positions(model, image_size, name)


def _settings(file: TimmFile) -> dict[str, Any]:
    geometry = file.geometry()
    return {
        **geometry,
        "image_size": file.side(before=1) * geometry["patch_size"],
        "layer_norm_eps": 1e-5,
        "hidden_act": "quick_gelu" if _QUICK_GELU.search(file.name) else "gelu",
    }


def _rules(file: TimmFile) -> list[WeightRule]:
    return [
        WeightRule("cls_token", 3, ("embeddings.class_embedding",), lambda token: (token[0, 0],)),
        WeightRule("pos_embed", 3, ("embeddings.position_embedding.weight",), unbatched),
        WeightRule(f"{PATCHES}.weight", 4, ("embeddings.patch_embedding.weight",), same),
        *renamed("norm_pre", "pre_layrnorm", 1),
        *renamed("norm", "post_layernorm", 1),
        *block_rules(PLACES, file.depth, file.tensors, NORMS),
    ]


FAMILY = ClipFamily(
    title="CLIP",
    model_types=("clip_vision_model", "clip"),
    example="openai/clip-vit-base-patch32",
    unit="image",
    model_class="CLIPVisionModel",
    places=PLACES,
    below=("embeddings", "pre_layrnorm"),
    pool=pooler_output,
    other_towers=("text_model.",),
    timm=TimmNaming(
        title="CLIP",
        sign=lambda tensors: "norm_pre.weight" in tensors,
        model=CLIPVisionModel,
        settings=_settings,
        rules=_rules,
        normalisation="clip",
    ),
)
