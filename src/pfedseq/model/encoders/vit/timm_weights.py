"""Read a plain ViT from a file with timm's names or those of the original augreg release.

Both are converted to the tensors of transformers' `ViTModel`. A file must contain exactly the
tensors of a pre-norm ViT with a class token, plus a classification head, which is dropped; DINOv2's
layer scale is folded into the preceding weights, and its registers are kept. Anything else (a
distillation token, a missing block) is refused by name.
"""

import argparse
import math
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import ViTConfig, ViTModel

from pfedseq.errors import InputError
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

HEAD_WIDTH = 64
"""Every ViT of the paper's family has attention heads of this width."""
UNREADABLE = (
    *(OSError, EOFError, KeyError, ValueError, TypeError, RuntimeError),
    *(SafetensorError, UnpicklingError, zipfile.BadZipFile),
)
"""Exceptions that weight readers raise for a broken or hostile file."""


@dataclass(frozen=True)
class VitWeights:
    """An architecture and all tensors of a `ViTModel` without pooler."""

    config: ViTConfig
    state: dict[str, Tensor]
    """The tensors by name; DINOv2's registers, if any, are under `REGISTERS`."""
    origin: tuple[str, str] | None = None
    """The name of a normalisation and how the file was recognised; None if it was not."""


def read_timm_file(path: Path, num_heads: int | None) -> VitWeights:
    """Read `path` by its suffix; `num_heads` defaults to width / 64 (an .npz contains it)."""
    if not path.is_file():
        raise InputError(f"there is no backbone file {path}")
    tensors, wrapped_in = _read_tensors(path)
    naming = AUGREG if path.suffix == ".npz" else TIMM
    scaled = any(key.endswith(".ls1.gamma") for key in tensors)
    registers = take_registers(tensors)
    if naming is TIMM:
        if scaled:
            add_class_position(tensors)
        tensors = fold_layer_scale(tensors)
    depth = _checked_depth(tensors, naming, path)
    config = _infer_config(tensors, naming, depth, num_heads, path)
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


def reason(error: Exception) -> str:
    """The reason why a file could not be read, as the end of a sentence."""
    if isinstance(error, UnpicklingError):
        return "it is damaged, or holds Python objects beyond tensors, which are never executed."
    return str(error).strip().split("\n", 1)[0] or "it ends too early."


def _read_tensors(path: Path) -> tuple[dict[str, Tensor], str | None]:
    """All tensors of the file in float32, and the key under which they were stored, if any.

    No pickled object is ever executed. DINO stores its `argparse.Namespace`, a plain container,
    beside the weights; that one class is allowed.
    """
    wrapped_in = None
    try:
        if path.suffix == ".safetensors":
            tensors = load_file(path)
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                tensors = {key: torch.from_numpy(archive[key]) for key in archive.files}
        else:
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(path, map_location="cpu", weights_only=True)
            tensors, wrapped_in = _unwrap(content, path)
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(
            f"{path} is not a readable {path.suffix} file of plain tensors: {reason(error)}"
        ) from error
    return {key: tensor.float() for key, tensor in tensors.items()}, wrapped_in


def _unwrap(content: object, path: Path) -> tuple[dict[str, Tensor], str | None]:
    """The state dict in a checkpoint of DeiT ("model"), DINO ("teacher") or a trainer."""
    wrapped_in = None
    for key in ("model", "state_dict", "teacher"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content, wrapped_in = content[key], key
    if not isinstance(content, Mapping):
        raise InputError(f"{path} holds a {type(content).__name__}, not a state dict")
    tensors = {}
    for key, value in content.items():
        if not isinstance(value, Tensor):
            raise InputError(f"{path} holds a {type(value).__name__} under {key!r}, not a tensor")
        tensors[str(key).removeprefix("module.").removeprefix("backbone.")] = value
    return tensors, wrapped_in


def _checked_depth(tensors: Mapping[str, Tensor], naming: Naming, path: Path) -> int:
    """The number of blocks, after checking that exactly the expected names are present."""
    blocks = [int(match[1]) for key in tensors if (match := re.match(naming.block, key))]
    if not blocks:
        raise InputError(
            f"{path} is not a ViT in {naming.family} naming: it has no {naming.example_block}, but "
            f"{name_some(sorted(tensors))} (a transformers checkpoint is given by its folder)"
        )
    depth = max(blocks) + 1
    known = {entry.source for entry in naming.entries(depth, naming.query_bias in tensors)}
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
        heads = num_heads if num_heads is not None else max(1, width // HEAD_WIDTH)
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
    for entry in naming.entries(config.num_hidden_layers, config.qkv_bias):
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
