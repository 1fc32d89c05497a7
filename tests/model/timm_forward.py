"""A ViT's forward pass from its definition: what every loaded backbone is held against."""

import torch
from torch import Tensor
from torch.nn import functional


def plain_forward(tensors: dict[str, Tensor], images: Tensor, heads: int) -> Tensor:
    """All normalised tokens (n, 1 + patches, width), written out from the definition of a ViT."""
    t = tensors
    kernel = t["patch_embed.proj.weight"]
    width, _, patch, _ = kernel.shape
    grid = functional.conv2d(images, kernel, t["patch_embed.proj.bias"], stride=patch)
    x = grid.flatten(2).transpose(1, 2)
    x = torch.cat([t["cls_token"].expand(len(x), -1, -1), x], dim=1) + t["pos_embed"]

    def norm(x: Tensor, key: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return centred / (variance + 1e-6).sqrt() * t[f"{key}.weight"] + t[f"{key}.bias"]

    def linear(x: Tensor, key: str) -> Tensor:
        return x @ t[f"{key}.weight"].T + t.get(f"{key}.bias", torch.zeros(()))

    for i in range(sum(key.endswith("attn.qkv.weight") for key in t)):
        qkv = linear(norm(x, f"blocks.{i}.norm1"), f"blocks.{i}.attn.qkv")
        n, tokens, _ = qkv.shape
        q, k, v = qkv.view(n, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        attention = (q @ k.transpose(-2, -1) / (width // heads) ** 0.5).softmax(-1)
        mixed = (attention @ v).transpose(1, 2).reshape(n, tokens, width)
        x = x + linear(mixed, f"blocks.{i}.attn.proj")
        hidden = linear(norm(x, f"blocks.{i}.norm2"), f"blocks.{i}.mlp.fc1")
        x = x + linear(functional.gelu(hidden), f"blocks.{i}.mlp.fc2")
    return norm(x, "norm")
