"""Reads files of plain tensors; no pickled object is ever executed."""

import argparse
import zipfile
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from pfedseq.errors import InputError

UNREADABLE = (
    *(OSError, EOFError, KeyError, ValueError, TypeError, RuntimeError),
    *(SafetensorError, UnpicklingError, zipfile.BadZipFile),
)
"""Exceptions that weight readers raise for a broken or hostile file."""


def reason(error: Exception) -> str:
    """The reason why a file could not be read, as the end of a sentence."""
    if isinstance(error, UnpicklingError):
        return "it is damaged, or holds Python objects beyond tensors, which are never executed."
    return str(error).strip().split("\n", 1)[0] or "it ends too early."


def read_tensors(path: Path) -> tuple[dict[str, Tensor], str | None]:
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
