"""Read a plain ViT from a file with timm's names or those of the original augreg release.

Both are converted to the tensors of transformers' `ViTModel`. A file must contain exactly the
tensors of a pre-norm ViT with a class token, plus a classification head, which is dropped; DINOv2's
layer scale is folded into the preceding weights, and its registers are kept. Anything else (a
distillation token, a missing block) is refused by name.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import ViTConfig, ViTModel

from pfedseq.errors import InputError
from pfedseq.model.encoders.timm import TimmFile, heads_of
from pfedseq.model.encoders.vit.naming import (
    AUGREG,
    REGISTERS,
    TIMM,
    Naming,
    add_class_position,
    fold_layer_scale,
    other_architecture,
    take_registers,
)
from pfedseq.model.geometry import name_some
from pfedseq.model.normalisation import recognise


@dataclass(frozen=True)
class VitWeights:
    """An architecture and all tensors of a `ViTModel` without pooler."""

    config: ViTConfig
    state: dict[str, Tensor]
    """The tensors by name; DINOv2's registers, if any, are under `REGISTERS`."""
    origin: tuple[str, str] | None = None
    """The name of a normalisation and how the file was recognised; None if it was not."""


def read_vit(file: TimmFile, wrapped_in: str | None) -> VitWeights:
    """The plain ViT of a file, whose tensors were stored under `wrapped_in`, if anywhere."""
    path, tensors = file.path, dict(file.tensors)
    naming = AUGREG if path.suffix == ".npz" else TIMM
    scaled = any(key.endswith(".ls1.gamma") for key in tensors)
    registers = take_registers(tensors)
    if naming is TIMM:
        if scaled:
            add_class_position(tensors)
        tensors = fold_layer_scale(tensors)
    depth = _checked_depth(tensors, naming, path)
    config = _infer_config(tensors, naming, depth, file.num_heads, path)
    state = _convert(tensors, naming, config, path)
    if registers is not None:
        if registers.shape[::2] != (1, config.hidden_size):
            raise InputError(f"{path} has registers of shape {tuple(registers.shape)}")
        state[REGISTERS] = registers
    return VitWeights(config, state, _origin(path, wrapped_in, scaled))


def _origin(path: Path, wrapped_in: str | None, scaled: bool) -> tuple[str, str] | None:
    """The normalisation that the file was trained with, if its content or name reveals it."""
    if wrapped_in == "teacher":
        return "imagenet", "a DINO checkpoint"
    if scaled:
        return "imagenet", "DINOv2 or DeiT III (it has layer scale)"
    if path.suffix == ".npz":
        return "half", "the augreg release"
    by_name = recognise(path.name)
    return (by_name[0], f"{by_name[1]!r}, by its name") if by_name else None


def _checked_depth(tensors: Mapping[str, Tensor], naming: Naming, path: Path) -> int:
    """The number of blocks, after checking that exactly the expected names are present."""
    blocks = [int(match[1]) for key in tensors if (match := re.match(naming.block, key))]
    if not blocks:
        raise InputError(
            f"{path} is not a ViT in {naming.family} naming: it has no {naming.example_block}, but "
            f"{name_some(sorted(tensors))} (a transformers checkpoint is given by its folder)"
        )
    depth = max(blocks) + 1
    inner, outer = (tensors.get(f"blocks.0.mlp.{key}") for key in ("fc1.bias", "fc2.weight"))
    if inner is not None and outer is not None and len(inner) == 2 * outer.shape[-1]:
        raise InputError(
            f"{path} has gated MLPs (SwiGLU), like DINOv2's giant ViT: models of this kind are "
            "read in transformers' format only; give its folder or hub id"
        )
    known = {entry.source for entry in naming.entries(depth, tensors)}
    missing = sorted(known - tensors.keys())
    unexpected = sorted(key for key in tensors.keys() - known if not key.startswith(naming.head))
    if missing or unexpected:
        raise InputError(
            f"{path} is not a plain ViT with a class token: "
            f"missing {name_some(missing)}; unexpected {name_some(unexpected)}"
            f"{other_architecture(tensors)}"
        )
    return depth


def _infer_config(
    tensors: Mapping[str, Tensor], naming: Naming, depth: int, num_heads: int | None, path: Path
) -> ViTConfig:
    """The architecture inferred from the shapes; timm's layer norms have ε = 1e-6."""
    kernel, positions = tensors[naming.patch_kernel], tensors[naming.positions]
    if kernel.ndim != 4 or positions.ndim != 3:
        raise InputError(
            f"{path} has a patch embedding of shape {tuple(kernel.shape)} and positions of shape "
            f"{tuple(positions.shape)}; a ViT has four and three dimensions there"
        )
    width, channels, patch, patch_width = naming.as_conv_weight(kernel).shape
    side = math.isqrt(max(0, positions.shape[1] - 1))
    if channels != 3 or patch != patch_width or side**2 + 1 != positions.shape[1]:
        raise InputError(
            f"{path} has {channels} channels, patches of {patch}×{patch_width} pixels and "
            f"{positions.shape[1]} positions; 3 channels, square patches and one class token "
            "before a square grid are needed"
        )
    heads = naming.num_heads(tensors)
    if heads is None:
        heads = num_heads if num_heads is not None else heads_of(width)
    elif num_heads not in (None, heads):
        raise InputError(f"{path} has {heads} attention heads, not num_heads = {num_heads}")
    if heads < 1 or width % heads:
        raise InputError(
            f"{path} has width {width}, which {heads} attention heads do not divide; give the "
            "right num_heads"
        )
    return ViTConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=tensors[naming.mlp_bias].numel(),
        image_size=side * patch,
        patch_size=patch,
        layer_norm_eps=1e-6,
        qkv_bias=naming.query_bias in tensors,
    )


def _convert(
    tensors: Mapping[str, Tensor], naming: Naming, config: ViTConfig, path: Path
) -> dict[str, Tensor]:
    """Every tensor with transformers' name and shape; refuses misfits by name."""
    with torch.device("meta"):
        wanted = ViTModel(config, add_pooling_layer=False).state_dict()
    state: dict[str, Tensor] = {}
    misfits = []
    for entry in naming.entries(config.num_hidden_layers, tensors):
        tensor = tensors[entry.source]
        parts = entry.convert(tensor) if tensor.ndim == entry.ndim else ()
        if [part.shape for part in parts] != [wanted[target].shape for target in entry.targets]:
            misfits.append(f"{entry.source} {tuple(tensor.shape)}")
        state.update(zip(entry.targets, (part.contiguous() for part in parts), strict=False))
    if misfits:
        raise InputError(
            f"{path} does not fit a ViT of width {config.hidden_size} with "
            f"{config.num_hidden_layers} blocks: the shapes of {name_some(misfits)} are wrong"
        )
    return state
