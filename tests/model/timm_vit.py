"""A small ViT in timm's naming, and a ViT's forward pass from its definition.

What every loaded backbone is held against.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from pfedseq.model.backbone import load_backbone

WIDTH, DEPTH, HEADS, PATCH, SIDE, MLP = 128, 2, 2, 8, 4, 320


def timm_tensors(seed: int = 0, scale: float = 1.0, qkv_bias: bool = True) -> dict[str, Tensor]:
    """A random ViT as timm names it, with every tensor away from its usual initial value."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float = 0.1, mean: float = 0.0) -> Tensor:
        return mean + std * torch.randn(*shape, generator=rng)

    tensors = {
        "cls_token": scale * normal(1, 1, WIDTH),
        "pos_embed": scale * normal(1, 1 + SIDE**2, WIDTH),
        "patch_embed.proj.weight": scale * normal(WIDTH, 3, PATCH, PATCH),
        "patch_embed.proj.bias": scale * normal(WIDTH),
        "norm.weight": normal(WIDTH, mean=1.0),
        "norm.bias": normal(WIDTH),
        "head.weight": normal(10, WIDTH),
        "head.bias": normal(10),
    }
    for i in range(DEPTH):
        block = {
            "norm1.weight": normal(WIDTH, mean=1.0),
            "norm1.bias": normal(WIDTH),
            "attn.qkv.weight": normal(3 * WIDTH, WIDTH),
            "attn.qkv.bias": normal(3 * WIDTH),
            "attn.proj.weight": normal(WIDTH, WIDTH),
            "attn.proj.bias": normal(WIDTH),
            "norm2.weight": normal(WIDTH, mean=1.0),
            "norm2.bias": normal(WIDTH),
            "mlp.fc1.weight": normal(MLP, WIDTH),
            "mlp.fc1.bias": normal(MLP),
            "mlp.fc2.weight": normal(WIDTH, MLP),
            "mlp.fc2.bias": normal(WIDTH),
        }
        if not qkv_bias:
            del block["attn.qkv.bias"]
        tensors |= {f"blocks.{i}.{key}": value for key, value in block.items()}
    return tensors


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


def some_images(size: int = SIDE * PATCH, count: int = 3) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(7))


def tokens_of(name: str | Path, images: Tensor, **options: object) -> Tensor:
    with torch.no_grad():
        model = load_backbone(str(name), **options).model
        return model(pixel_values=images).last_hidden_state


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def without(key: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """A change to a checkpoint: leave one tensor out."""
    return lambda t: {k: v for k, v in t.items() if k != key}


class Bomb:
    """What a hostile pickle would do: touch a file while it is being loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.target,)
