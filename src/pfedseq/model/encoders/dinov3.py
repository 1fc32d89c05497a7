"""DINOv3's ViTs: rotary positions, registers, layer scale; the class token is the feature."""

from typing import Any

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from pfedseq.model.adapters import Places
from pfedseq.model.encoders.family import Family
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


FAMILY = Dinov3Family(
    title="DINOv3",
    model_types=("dinov3_vit",),
    example="facebook/dinov3-vitb16-pretrain-lvd1689m",
    unit="image",
    places=Places(
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
    ),
    above=("norm",),
)
