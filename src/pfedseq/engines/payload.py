"""Compressed uploads: float16 or int8 with error feedback.

At the client a tensor x of a reply is treated as an update u of its starting value: the tensor that
the server sent under its name, else φ^0, else zero (a Δ is already an update). The client sends Q(u
+ e), where e is the rounding error of earlier rounds, and e ← u + e − Q(u + e) stays in the
client's memory (error feedback: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech
2014). So the sum of the received updates never differs from the sum of the true ones by more than
one rounding error. Q divides every row (the last dimension) by its own scale and rounds to the
nearest, so neither tiny nor huge updates are lost.

`answer` packs and `engines/intake.py` unpacks, in all engines; methods are not involved.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pfedseq.federation import Tensors
from pfedseq.params import Params

PayloadKind = Literal["float32", "float16", "int8"]

_LARGEST = {"float16": 1.0, "int8": 127.0}
"""The code of the largest number of a row."""
_TYPES = {"float16": torch.float16, "int8": torch.int8}
_SCALE = ":scale"
"""Suffix of the name of a tensor that holds another's scales."""
_RESIDUAL = "residual:"
"""Prefix of the names of rounding errors in a client's memory."""


def take_residuals(state: Tensors) -> Tensors:
    """Remove the rounding errors from a client's memory, so that no method sees them."""
    return {name: state.pop(name) for name in [n for n in state if n.startswith(_RESIDUAL)]}


def pack(
    step: str, tensors: Tensors, base: Tensors, precision: PayloadKind, residuals: Tensors
) -> tuple[Tensors, Tensors]:
    """The tensors as sent, and the new `residuals`.

    Only float32 is rounded; anything else, such as indices, is sent unchanged.
    """
    if precision == "float32":
        return tensors, residuals
    packed: Tensors = {}
    left = dict(residuals)
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32 or tensor.dim() == 0 or tensor.numel() == 0:
            packed[name] = tensor
            continue
        kept = f"{_RESIDUAL}{step}:{name}"
        wanted = tensor - base[name] if _fits(base.get(name), tensor) else tensor
        if _fits(residuals.get(kept), tensor):
            wanted = wanted + residuals[kept]
        codes, scale = _rounded(wanted, precision)
        packed |= {name: codes, name + _SCALE: scale}
        left[kept] = wanted - _restored(codes, scale)
    return packed, left


def unpack(packed: Tensors, base: Tensors) -> Tensors:
    """The rounded tensors that `pack` encoded; other tensors are passed through."""
    tensors: Tensors = {}
    for name, tensor in packed.items():
        scale = packed.get(name + _SCALE)
        if scale is not None and _belongs(scale, tensor):
            update = _restored(tensor, scale)
            tensors[name] = base[name] + update if _fits(base.get(name), update) else update
        elif not (name.endswith(_SCALE) and name.removesuffix(_SCALE) in packed):
            tensors[name] = tensor
    return tensors


def bases(initial: Params, down: Tensors) -> Tensors:
    """The starting values of a reply's tensors, known to client and server."""
    return initial.tensors() | down


def _rounded(x: Tensor, precision: PayloadKind) -> tuple[Tensor, Tensor]:
    """Codes shaped as x, and the scale of each row; a row too small to be divided is all zero."""
    largest = _LARGEST[precision]
    scale = x.abs().amax(-1, keepdim=True) / largest
    codes = torch.where(scale > 0, x / scale, 0.0)
    if precision == "int8":
        codes = codes.round().clamp(-largest, largest)
    return codes.to(_TYPES[precision]), scale


def _restored(codes: Tensor, scale: Tensor) -> Tensor:
    return codes.to(scale.dtype) * scale


def _belongs(scale: Tensor, codes: Tensor) -> bool:
    return (
        codes.dtype in _TYPES.values()
        and scale.dtype == torch.float32
        and codes.dim() > 0
        and scale.shape == (*codes.shape[:-1], 1)
    )


def _fits(other: Tensor | None, tensor: Tensor) -> bool:
    return other is not None and (other.shape, other.dtype) == (tensor.shape, tensor.dtype)
