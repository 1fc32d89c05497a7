"""A checksum of frozen weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from torch import nn


def checksum_of(module: nn.Module, options: Sequence[object]) -> str:
    """Changes when any weight of a module does, or an option of how it computes."""
    digest = hashlib.sha256(json.dumps(options).encode())
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()
