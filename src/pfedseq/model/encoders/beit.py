"""BEiT: relative positions as a bias of attention; the pooled output is the feature."""

from typing import Any

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling

from pfedseq.model.adapters import VIT, Places
from pfedseq.model.encoders.family import Family, pooler_output
from pfedseq.model.geometry import check_divides


class BeitFamily(Family):
    """BEiT, whose attention bias depends on the image size, which tokens do not reveal."""

    def resize(self, model: Any, image_size: int, name: str) -> None:
        """Do nothing: every block interpolates its own table."""
        check_divides(int(model.config.patch_size), image_size, name)

    def run(self, model: Any, inputs: Tensor, image_size: int) -> Any:
        """Transformers' forward on pixels; its blocks, norm and pooler on tokens."""
        if inputs.dim() == 4:
            return model(pixel_values=inputs)
        bias, shared = None, model.shared_position_bias
        if shared is not None:
            side = image_size // int(model.config.patch_size)
            bias = shared((side, side), dim_size=inputs.shape[1])
        for block in model.layers:
            inputs = block(inputs, attention_mask=bias, resolution=(image_size, image_size))
        tokens = model.layernorm(inputs)
        return BaseModelOutputWithPooling(
            last_hidden_state=tokens, pooler_output=model.pooler(tokens)
        )

    def options(self, config: Any) -> tuple[object, ...]:
        """The common options and the kinds of positions used."""
        keys = ("use_relative_position_bias", "use_shared_relative_position_bias")
        return (*super().options(config), *(getattr(config, key) for key in keys))


FAMILY = BeitFamily(
    title="BEiT",
    model_types=("beit",),
    example="microsoft/beit-base-patch16-224",
    unit="image",
    places=Places(VIT.modules, "layers"),
    above=("layernorm",),
    pool=pooler_output,
)
