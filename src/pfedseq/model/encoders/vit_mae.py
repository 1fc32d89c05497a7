"""ViT-MAE: a ViT whose embeddings mask patches; here none is masked and the order is kept."""

from typing import Any

import torch
from torch import Tensor, nn

from pfedseq.model.adapters import VIT
from pfedseq.model.encoders.family import Family, blocks_and_norm
from pfedseq.model.encoders.positions import resample_positions


class MaeFamily(Family):
    """ViT-MAE, which shuffles patches by noise; increasing numbers here keep their order."""

    def resize(self, model: nn.Module, image_size: int, name: str) -> None:
        """Interpolate the positions."""
        resample_positions(model, image_size, name)

    def run(self, model: Any, inputs: Tensor, image_size: int) -> Any:
        """Transformers' forward on pixels; its blocks and norm on tokens."""
        if inputs.dim() == 4:
            patches = (image_size // int(model.config.patch_size)) ** 2
            noise = torch.arange(patches, device=inputs.device).expand(len(inputs), -1)
            return model(pixel_values=inputs, noise=noise)
        return blocks_and_norm(model, inputs)


FAMILY = MaeFamily(
    title="ViT-MAE",
    model_types=("vit_mae",),
    example="facebook/vit-mae-base",
    unit="image",
    model_class="ViTMAEModel",
    places=VIT,
    above=("layernorm",),
    load_options={"mask_ratio": 0.0},
    other_towers=("decoder.",),
)
