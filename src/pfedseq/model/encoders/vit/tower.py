"""A stretch of a ViT's blocks: the frozen ones below the first adapter, and those above."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import ViTModel

from pfedseq.model.encoders.parts import Part


class Tower(Part):
    """Blocks `start` … `stop` − 1 of a ViT, under the names that they have in it.

    From the bottom it takes normalised images (B, 3, S, S), else tokens (B, T, F); to the top it
    gives the class token's features (B, F), else tokens.
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
        """The blocks one after the other; in eval mode, so nothing is dropped."""
        tokens: Tensor = inputs if self.embeddings is None else self.embeddings(inputs)
        for block in self.layers.values():
            tokens = block(tokens, None)
        if self.layernorm is None:
            return tokens
        features: Tensor = self.layernorm(tokens)
        return features[:, 0]
