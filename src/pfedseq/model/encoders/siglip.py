"""SigLIP's vision tower, alone or from a complete SigLIP; its pooling head gives the feature.

Checkpoints of SigLIP 2 for a fixed image size also use it; see `siglip2` for the others.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import SiglipVisionModel

from pfedseq.model.adapters import Places
from pfedseq.model.encoders import clip
from pfedseq.model.encoders.family import Family
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
from pfedseq.model.feature_length import feature_length

PLACES = Places(clip.PLACES.modules, "encoder.layers", outside=("head.mlp.fc1", "head.mlp.fc2"))


def pooled(outputs: Any) -> Tensor:
    """The output of the pooling head (B, F), or the mean of all patches if there is no head."""
    token: Tensor | None = outputs.pooler_output
    mean: Tensor = outputs.last_hidden_state.mean(1)
    return mean if token is None else token


class SiglipFamily(Family):
    """SigLIP, with a table of positions; its features do not come from a norm."""

    def resize(self, model: nn.Module, image_size: int, name: str) -> None:
        """Interpolate the positions."""
        resample_positions(model, image_size, name)

    def call(self, config: Any) -> str:
        """Python code for the features, with or without the pooling head."""
        return f"model(**inputs).{self.output(config)}"

    def output(self, config: Any) -> str:
        """Python code for the features among transformers' outputs."""
        with_head = getattr(config, "vision_use_head", True)
        return "pooler_output" if with_head else "last_hidden_state.mean(1)"

    @torch.no_grad()
    def feature_length(self, tower: nn.Module) -> float:
        """The root mean square length of the pooled features of images with equal patches.

        Patches are γ·z + β of the last norm, for 64 normally distributed z.
        """
        model: Any = tower.get_submodule("model")
        norm = model.post_layernorm
        if not model.use_head:
            return feature_length(norm)
        rng = torch.Generator().manual_seed(0)
        z = torch.randn(64, 1, len(norm.weight), generator=rng).to(norm.weight.device)
        features = model.head(norm.weight * z + norm.bias)
        return float(features.square().sum(1).mean().sqrt())


def _is_timm(tensors: Mapping[str, Tensor]) -> bool:
    """Whether patches alone have positions, and a norm ends the blocks."""
    return {"pos_embed", "norm.weight"} <= tensors.keys() and not {
        "cls_token",
        "reg_token",
    } & tensors.keys()


def _settings(file: TimmFile) -> dict[str, Any]:
    geometry = file.geometry()
    with_head = "attn_pool.latent" in file.tensors
    # timm computes some sizes of SigLIP with the exact GELU, though all were trained with tanh's.
    tanh = with_head or "siglip" in file.name
    return {
        **geometry,
        "image_size": file.side(before=0) * geometry["patch_size"],
        "layer_norm_eps": 1e-6,
        "hidden_act": "gelu_pytorch_tanh" if tanh else "gelu",
        "vision_use_head": with_head,
    }


def _rules(file: TimmFile) -> list[WeightRule]:
    found = [
        WeightRule("pos_embed", 3, ("embeddings.position_embedding.weight",), unbatched),
        *renamed(PATCHES, "embeddings.patch_embedding", 4),
        *renamed("norm", "post_layernorm", 1),
        *block_rules(PLACES, file.depth, file.tensors, clip.NORMS),
    ]
    if "attn_pool.latent" in file.tensors:
        found += [
            WeightRule("attn_pool.latent", 3, ("head.probe",), same),
            *renamed("attn_pool.proj", "head.attention.out_proj", 2),
            *renamed("attn_pool.norm", "head.layernorm", 1),
            *renamed("attn_pool.mlp.fc1", "head.mlp.fc1", 2),
            *renamed("attn_pool.mlp.fc2", "head.mlp.fc2", 2),
            WeightRule("attn_pool.qkv.weight", 2, ("head.attention.in_proj_weight",), same),
            WeightRule("attn_pool.qkv.bias", 1, ("head.attention.in_proj_bias",), same),
        ]
    return found


def _stacked_pooling(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stack the pooling head's query on its key and value, as transformers does."""
    stacked = dict(tensors)
    for kind in ("weight", "bias"):
        query, others = (stacked.get(f"attn_pool.{name}.{kind}") for name in ("q", "kv"))
        if query is not None and others is not None and query.shape[1:] == others.shape[1:]:
            stacked[f"attn_pool.qkv.{kind}"] = torch.cat([query, others])
            del stacked[f"attn_pool.q.{kind}"], stacked[f"attn_pool.kv.{kind}"]
    return stacked


FAMILY = SiglipFamily(
    title="SigLIP",
    model_types=("siglip_vision_model", "siglip"),
    example="google/siglip-base-patch16-224",
    unit="image",
    model_class="SiglipVisionModel",
    places=PLACES,
    above=("post_layernorm",),
    pool=pooled,
    other_towers=("text_model.",),
    timm=TimmNaming(
        title="SigLIP or ViT without a class token",
        sign=_is_timm,
        model=SiglipVisionModel,
        prepare=_stacked_pooling,
        settings=_settings,
        rules=_rules,
        normalisation="half",
    ),
)
