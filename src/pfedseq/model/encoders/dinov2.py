"""DINOv2 with and without registers: a ViT with layer scale; the class token is the feature."""

from torch import nn

from pfedseq.model.adapters import VIT, Places
from pfedseq.model.encoders.family import Family
from pfedseq.model.encoders.positions import resample_positions


class Dinov2Family(Family):
    """DINOv2, with a table of positions."""

    def resize(self, model: nn.Module, image_size: int, name: str) -> None:
        """Interpolate the positions."""
        resample_positions(model, image_size, name)


FAMILY = Dinov2Family(
    title="DINOv2",
    model_types=("dinov2", "dinov2_with_registers"),
    example="facebook/dinov2-with-registers-base",
    unit="image",
    places=Places(VIT.modules, "encoder.layer"),
    above=("layernorm",),
)
