"""A range of a ViT's blocks: those below the first adapter, or those above."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import ViTModel

from pfedseq.model.encoders.parts import Part


class Tower(Part):
    """Blocks `start` … `stop` − 1 of a ViT, with their original names.

    A tower that starts at the bottom takes normalised images (B, 3, S, S), any other tokens
    (B, T, F). One that ends at the top returns the class token's features (B, F), any other tokens.
    """

    def __init__(self, vit: ViTModel, start: int, stop: int) -> None:
        super().__init__()
        config = vit.config
        self.options = (config.num_attention_heads, config.layer_norm_eps, config.hidden_act)
        self.embeddings = vit.embeddings if start == 0 else None
        self.num_layers = stop - start
        self.layers = nn.ModuleDict({str(k): vit.layers[k] for k in range(start, stop)})
        self.layernorm = vit.layernorm if stop == len(vit.layers) else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the blocks in order; in eval mode, so without dropout."""
        tokens: Tensor = inputs if self.embeddings is None else self.embeddings(inputs)
        for block in self.layers.values():
            tokens = block(tokens, None)
        if self.layernorm is None:
            return tokens
        features: Tensor = self.layernorm(tokens)
        return features[:, 0]
