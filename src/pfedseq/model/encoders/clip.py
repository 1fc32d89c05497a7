"""CLIP's vision tower, alone or from a complete CLIP; the pooled class token is the feature."""

from torch import nn

from pfedseq.model.adapters import Places
from pfedseq.model.encoders.family import Family, pooler_output
from pfedseq.model.encoders.positions import resample_positions


class ClipFamily(Family):
    """CLIP's vision tower, with a table of positions."""

    def resize(self, model: nn.Module, image_size: int, name: str) -> None:
        """Interpolate the positions."""
        resample_positions(model, image_size, name)


FAMILY = ClipFamily(
    title="CLIP",
    model_types=("clip_vision_model", "clip"),
    example="openai/clip-vit-base-patch32",
    unit="image",
    model_class="CLIPVisionModel",
    places=Places(
        {
            "query": "self_attn.q_proj",
            "key": "self_attn.k_proj",
            "value": "self_attn.v_proj",
            "output": "self_attn.out_proj",
            "mlp_in": "mlp.fc1",
            "mlp_out": "mlp.fc2",
        },
        "encoder.layers",
    ),
    below=("embeddings", "pre_layrnorm"),
    pool=pooler_output,
    other_towers=("text_model.",),
)
