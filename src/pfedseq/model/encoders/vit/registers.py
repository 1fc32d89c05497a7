"""A ViT with registers (DINOv2): tokens without a position that all patches can attend to."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import ViTConfig, ViTModel
from transformers.models.vit.modeling_vit import ViTEmbeddings


class EmbeddingsWithRegisters(ViTEmbeddings):  # type: ignore[misc]
    """A ViT's embeddings with R additional tokens between the class token and the patches."""

    def __init__(self, config: ViTConfig, num_registers: int) -> None:
        super().__init__(config)
        self.register_tokens = nn.Parameter(torch.zeros(1, num_registers, config.hidden_size))

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """(B, 1 + R + patches, width)."""
        tokens = super().forward(*inputs, **options)
        registers = self.register_tokens.expand(len(tokens), -1, -1)
        return torch.cat([tokens[:, :1], registers, tokens[:, 1:]], dim=1)


def add_registers(model: ViTModel, num_registers: int) -> None:
    """Add registers to a ViT; their weights must be loaded afterwards."""
    model.embeddings = EmbeddingsWithRegisters(model.config, num_registers)
