"""DINOv3's ViTs: rotary positions, registers, layer scale; the class token is the feature."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import DINOv3ViTModel
from transformers.modeling_outputs import BaseModelOutput

from pfedseq.model.adapters import Places
from pfedseq.model.encoders.family import Family
from pfedseq.model.encoders.timm import (
    MLP,
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


class Dinov3Family(Family):
    """DINOv3, whose positions depend on the image size, which tokens do not reveal."""

    def resize(self, model: Any, image_size: int, name: str) -> None:
        """Update the config only: positions are computed for any size."""
        check_divides(int(model.config.patch_size), image_size, name)
        model.config.image_size = image_size

    def run(self, model: Any, inputs: Tensor, image_size: int) -> Any:
        """Transformers' forward on pixels; its blocks and norm on tokens."""
        if inputs.dim() == 4:
            return model(pixel_values=inputs)
        positions = model.rope_embeddings(inputs.new_empty(1, 3, image_size, image_size))
        tokens = model.model(inputs, position_embeddings=positions).last_hidden_state
        return BaseModelOutput(last_hidden_state=model.norm(tokens))


PLACES = Places(
    {
        "query": "attention.q_proj",
        "key": "attention.k_proj",
        "value": "attention.v_proj",
        "output": "attention.o_proj",
        "mlp_in": "mlp.up_proj",
        "mlp_gate": "mlp.gate_proj",
        "mlp_out": "mlp.down_proj",
    },
    "model.layer",
)
_GATED_MLP = {"mlp_in": "fc1_x", "mlp_gate": "fc1_g", "mlp_out": "fc2"}
"""timm's names of the layers of a SwiGLU."""


def _is_gated(file: TimmFile) -> bool:
    return "blocks.0.mlp.fc1_g.weight" in file.tensors


def _settings(file: TimmFile) -> dict[str, Any]:
    width = file.tensors[f"{PATCHES}.weight"].shape[0]
    heads = file.num_heads or (32 if width == 4096 else width // 64)
    biased = "blocks.0.attn.q_bias" in file.tensors
    return {
        **file.geometry(heads),
        "image_size": file.pretrained_size,
        "layer_norm_eps": 1e-5,
        "query_bias": biased,
        "value_bias": biased,
        "num_register_tokens": file.tensors["reg_token"].shape[1],
        "use_gated_mlp": _is_gated(file),
        "hidden_act": "silu" if _is_gated(file) else "gelu",
    }


def _rules(file: TimmFile) -> list[WeightRule]:
    mlp = _GATED_MLP if _is_gated(file) else MLP
    return [
        WeightRule("cls_token", 3, ("embeddings.cls_token",), same),
        WeightRule("reg_token", 3, ("embeddings.register_tokens",), same),
        *renamed(PATCHES, "embeddings.patch_embeddings", 4),
        *renamed("norm", "norm", 1),
        *block_rules(PLACES, file.depth, file.tensors, ("norm1", "norm2"), mlp),
        *scale_rules(PLACES, file.depth, "layer_scale1.lambda1", "layer_scale2.lambda1"),
    ]


def _is_timm(tensors: Mapping[str, Tensor]) -> bool:
    """Whether there are registers and layer scales, but no table of positions."""
    return {"reg_token", "blocks.0.gamma_1"} <= tensors.keys() and "pos_embed" not in tensors


FAMILY = Dinov3Family(
    title="DINOv3",
    model_types=("dinov3_vit",),
    example="facebook/dinov3-vitb16-pretrain-lvd1689m",
    unit="image",
    places=PLACES,
    above=("norm",),
    timm=TimmNaming(
        title="DINOv3",
        sign=_is_timm,
        model=DINOv3ViTModel,
        settings=_settings,
        rules=_rules,
        normalisation="imagenet",
        absent=("embeddings.mask_token",),
    ),
)
