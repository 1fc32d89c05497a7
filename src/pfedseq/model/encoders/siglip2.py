"""SigLIP 2 for images of any shape (NaFlex), here square; its pooling head gives the feature."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pfedseq.model.encoders.siglip import PLACES, SiglipFamily, pooled
from pfedseq.model.geometry import check_divides


class Siglip2Family(SiglipFamily):
    """SigLIP 2, whose model takes patches and the number of patches along each side."""

    def image_size(self, config: Any) -> int:
        """The image size with as many patches as there are positions."""
        return int(config.num_patches**0.5) * int(config.patch_size)

    def resize(self, model: Any, image_size: int, name: str) -> None:
        """Interpolate the table once, where transformers does it for every image."""
        old, config = model.embeddings, model.config
        check_divides(int(config.patch_size), image_size, name)
        side, own = image_size // int(config.patch_size), int(config.num_patches**0.5)
        state = old.state_dict()
        table = state["position_embedding.weight"].reshape(own, own, -1)
        shapes = torch.tensor([[side, side]])
        resampled = old.resize_positional_embeddings(table, shapes, side**2)
        state["position_embedding.weight"] = resampled[0].contiguous()
        config.num_patches = side**2
        new = type(old)(config)
        new.load_state_dict(state, assign=True)
        model.embeddings = new.requires_grad_(False).eval()

    def run(self, model: nn.Module, inputs: Tensor, image_size: int) -> Any:
        """Cut images into patches; pass tokens on unchanged."""
        patch = int(model.config.patch_size)  # type: ignore[union-attr, arg-type]
        side = image_size // patch
        if inputs.dim() == 4:
            grid = inputs.unfold(2, patch, patch).unfold(3, patch, patch)  # (B, 3, g, g, p, p)
            inputs = grid.permute(0, 2, 3, 4, 5, 1).reshape(len(inputs), side**2, -1)
        shapes = torch.tensor([[side, side]]).expand(len(inputs), -1)
        return model(pixel_values=inputs, pixel_attention_mask=None, spatial_shapes=shapes)

    def call(self, config: Any) -> str:
        """Python code for the features, which also cuts the patches."""
        patch = int(config.patch_size)
        side = self.image_size(config) // patch
        return (
            "model(\n"
            f'    inputs["pixel_values"].unfold(2, {patch}, {patch}).unfold(3, {patch}, {patch})'
            ".permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2),\n"
            "    pixel_attention_mask=None,\n"
            f"    spatial_shapes=torch.tensor([[{side}, {side}]]),\n"
            f").{self.output(config)}"
        )


FAMILY = Siglip2Family(
    title="SigLIP 2",
    model_types=("siglip2_vision_model", "siglip2"),
    example="google/siglip2-base-patch16-naflex",
    unit="image",
    model_class="Siglip2VisionModel",
    places=PLACES,
    above=("post_layernorm",),
    pool=pooled,
    other_towers=("text_model.",),
)
