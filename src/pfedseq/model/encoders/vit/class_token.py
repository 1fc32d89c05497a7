"""A ViT's last block for the class token only, the one token that the head reads."""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import ViTModel
from transformers.models.vit.modeling_vit import ViTLayer


class ClassTokenBlock(nn.Module):
    """A transformer block (B, tokens, F) ↦ (B, 1, F): its output for the first token.

    All tokens still provide keys and values. Query, output projection and MLP, most of a block's
    work, run on one token, as do their gradients; the result equals the full block's.
    """

    def __init__(self, block: ViTLayer) -> None:
        super().__init__()
        # With the block's attribute names, so that weights and adapters keep theirs.
        self.attention, self.mlp = block.attention, block.mlp
        self.layernorm_before, self.layernorm_after = block.layernorm_before, block.layernorm_after

    def forward(self, tokens: Tensor, *_: Any, **__: Any) -> Tensor:
        """Pre-normalised attention and MLP, each added to its input; in eval mode, so no dropout.

        transformers also passes a mask, which a ViT does not use, and output options.
        """
        normed = self.layernorm_before(tokens)
        attention = self.attention
        mixed = scaled_dot_product_attention(
            self._heads(attention.q_proj(normed[:, :1])),
            self._heads(attention.k_proj(normed)),
            self._heads(attention.v_proj(normed)),
        )
        first = tokens[:, :1] + attention.o_proj(mixed.transpose(1, 2).flatten(2))
        result: Tensor = first + self.mlp(self.layernorm_after(first))
        return result

    def _heads(self, projected: Tensor) -> Tensor:
        """(B, tokens, F) ↦ (B, heads, tokens, F / heads)."""
        return projected.view(*projected.shape[:2], -1, self.attention.head_dim).transpose(1, 2)


def keep_class_token_only(model: ViTModel) -> None:
    """Replace the last block; `last_hidden_state` then has one token."""
    model.layers[-1] = ClassTokenBlock(model.layers[-1])
