"""A stretch of a ViT's blocks: the frozen ones below the first adapter, and those above."""

from __future__ import annotations

import hashlib
import json

from torch import Tensor, nn
from transformers import ViTModel


class Tower(nn.Module):
    """Blocks `start` … `stop` − 1 of a ViT, under the names that they have in it.

    From the bottom it takes normalised images (B, 3, S, S), else tokens (B, T, F); to the top it
    gives the class token's features (B, F), else tokens.
    """

    def __init__(self, vit: ViTModel, start: int, stop: int) -> None:
        super().__init__()
        config = vit.config
        self.options = (config.num_attention_heads, config.layer_norm_eps, config.hidden_act)
        self.embeddings = vit.embeddings if start == 0 else None
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


def fingerprint(tower: Tower) -> str:
    """Changes when any weight of the tower does, or how its blocks compute."""
    digest = hashlib.sha256(json.dumps(tower.options).encode())
    for name, tensor in tower.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()
