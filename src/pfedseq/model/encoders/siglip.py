"""SigLIP's vision tower, alone or from a complete SigLIP; its pooling head gives the feature.

Checkpoints of SigLIP 2 for a fixed image size also use it; see `siglip2` for the others.
"""

from typing import Any

import torch
from torch import Tensor, nn

from pfedseq.model.adapters import Places
from pfedseq.model.encoders import clip
from pfedseq.model.encoders.family import Family
from pfedseq.model.encoders.positions import resample_positions
from pfedseq.model.feature_length import feature_length

PLACES = Places(
    clip.FAMILY.places.modules, "encoder.layers", outside=("head.mlp.fc1", "head.mlp.fc2")
)


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
)
