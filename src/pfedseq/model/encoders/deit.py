"""DeiT with a distillation token: a ViT with one more token; the class token is the feature.

DeiTs without that token are called `vit` in their config.json.
"""

from typing import Any

from torch import Tensor, nn

from pfedseq.model.adapters import VIT
from pfedseq.model.encoders.family import Family, blocks_and_norm
from pfedseq.model.encoders.positions import resample_positions


class DeitFamily(Family):
    """DeiT, with a table of positions."""

    def resize(self, model: nn.Module, image_size: int, name: str) -> None:
        """Interpolate the positions."""
        resample_positions(model, image_size, name)

    def run(self, model: nn.Module, inputs: Tensor, image_size: int) -> Any:
        """Transformers' forward on pixels; its blocks and norm on tokens."""
        whole = inputs.dim() == 4
        return model(pixel_values=inputs) if whole else blocks_and_norm(model, inputs)


FAMILY = DeitFamily(
    title="DeiT",
    model_types=("deit",),
    example="facebook/deit-base-distilled-patch16-224",
    unit="image",
    places=VIT,
    above=("layernorm",),
    load_options={"add_pooling_layer": False},
)
