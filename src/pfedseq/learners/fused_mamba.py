"""The fused CPU kernel of the Mamba network as a differentiable function.

`mamba_kernel` runs the whole network on rows of D that stay in cache, forward and backward, and
keeps nothing between the two; see docs/explanation/learner-kernel.md. It is an optional extension,
opened by ctypes, which releases the GIL: the work is divided into (layer, chunk of D) and spread
over plain threads. Chunks have a fixed size and their weight gradients are added in a fixed order,
so the result does not depend on the number of threads, not even in the last bit.

The environment variable PFEDSEQ_MAMBA_KERNEL forces a variant (`baseline`, `avx2`, `avx512`) or
turns the kernel `off`.
"""

import ctypes
import functools
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from pfedseq.errors import InputError
from pfedseq.learners.layerwise import num_threads
from pfedseq.learners.mamba_block import BlockWeights, chunked_network

VARIANTS = ("baseline", "avx2", "avx512")
"""In the kernel's numbering; a processor that runs one variant also runs those before it."""

_VARIABLE = "PFEDSEQ_MAMBA_KERNEL"

_CHUNK_ROWS = 512
"""Rows of D per task. Part of the definition of the result: it fixes the order of summation."""


class _Call(ctypes.Structure):
    """The struct `Call` of mamba_kernel/kernel.c."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            *("blocks", "clients", "channels", "states", "rank", "width", "steps", "rows"),
            "is_signed",
            *("step_stride", "client_stride", "output_client_stride"),
            *("grad_step_stride", "grad_client_stride"),
        )
    )


class FusedMamba:
    """One variant of the kernel: Σ_b f_b at the last step, (K, D, N), of windows (K, D, L, N)."""

    def __init__(self, library: ctypes.CDLL, variant: str) -> None:
        self.variant = variant
        self._library = library

    def __call__(self, window: Tensor, blocks: Sequence[BlockWeights], *, signed: bool) -> Tensor:
        """The same value and gradients as `chunked_network`, in float32 on the CPU."""
        flat = [weight for block in blocks for weight in block]
        output = _FusedFunction.apply(self, signed, window, *flat)  # type: ignore[no-untyped-call]
        assert isinstance(output, Tensor)
        return output

    def forward(self, window: Tensor, blocks: Sequence[BlockWeights], *, signed: bool) -> Tensor:
        """The output, stored as (N, K, D)."""
        layers, dim, _, clients = window.shape
        window = _with_adjacent_rows(window)
        packed = _pack(blocks)
        output = window.new_empty(clients, layers, dim).permute(1, 2, 0)
        call = _describe(window, blocks, output, signed)

        def run(layer: int, rows: slice) -> None:
            tensors = (packed[layer], window[layer, rows], output[layer, rows])
            self._run(self._library.pfedseq_mamba_forward, call, tensors)

        _in_threads(run, layers, dim)
        return output

    def backward(
        self,
        window: Tensor,
        blocks: Sequence[BlockWeights],
        grad_output: Tensor,
        *,
        signed: bool,
        with_window: bool,
    ) -> tuple[Tensor | None, list[Tensor]]:
        """Gradients of the window (if required) and of each weight of each block, in order."""
        layers, dim, steps, clients = window.shape
        window = _with_adjacent_rows(window)
        packed = _pack(blocks)
        if grad_output.stride(1) != 1:
            grad_output = grad_output.mT.contiguous().mT
        call = _describe(window, blocks, grad_output, signed)
        grad_window = None
        if with_window:
            grad_window = window.new_empty(steps, clients, layers, dim).permute(2, 3, 0, 1)
            call.grad_step_stride, call.grad_client_stride = grad_window.stride()[2:]
        chunks = -(-dim // _CHUNK_ROWS)
        partial = packed.new_empty(chunks, *packed.shape)

        def run(layer: int, rows: slice) -> None:
            tensors = (
                packed[layer],
                window[layer, rows],
                grad_output[layer, rows],
                partial[rows.start // _CHUNK_ROWS, layer],
                None if grad_window is None else grad_window[layer, rows],
            )
            self._run(self._library.pfedseq_mamba_backward, call, tensors)

        _in_threads(run, layers, dim)
        gradient = partial[0]
        for other in partial[1:]:  # in order: see the module's docstring
            gradient += other
        return grad_window, _unpack(gradient, blocks)

    def _run(
        self, function: Callable[..., int], call: _Call, tensors: Sequence[Tensor | None]
    ) -> None:
        rows = tensors[1]  # of the window
        assert rows is not None
        of_task = _Call.from_buffer_copy(call)
        of_task.rows = rows.shape[0]
        pointers = [ctypes.c_void_p(t.data_ptr()) if t is not None else None for t in tensors]
        if function(VARIANTS.index(self.variant), ctypes.byref(of_task), *pointers) != 0:
            raise MemoryError("the Mamba kernel could not allocate its scratch memory")


class _FusedFunction(torch.autograd.Function):
    """Ties the kernel's two halves together; second derivatives go through PyTorch."""

    @staticmethod
    def forward(
        ctx: Any, kernel: FusedMamba, signed: bool, window: Tensor, *flat: Tensor
    ) -> Tensor:
        ctx.kernel, ctx.signed = kernel, signed
        ctx.save_for_backward(window, *flat)
        return kernel.forward(window, _blocks(flat), signed=signed)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        window, *flat = ctx.saved_tensors
        (grad_output,) = grad_outputs
        if torch.is_grad_enabled():  # create_graph=True
            inputs = [tensor for tensor in (window, *flat) if tensor.requires_grad]
            output = chunked_network(window, _blocks(flat), signed=ctx.signed)
            found = iter(torch.autograd.grad(output, inputs, grad_output, create_graph=True))
            return (
                None,
                None,
                *(next(found) if t.requires_grad else None for t in (window, *flat)),
            )
        grad_window, gradients = ctx.kernel.backward(
            window,
            _blocks(flat),
            grad_output,
            signed=ctx.signed,
            with_window=ctx.needs_input_grad[2],
        )
        return (None, None, grad_window, *gradients)


@functools.cache
def fused_mamba() -> FusedMamba | None:
    """The kernel's best variant for this processor, or None; warns once if it is missing."""
    wanted = os.environ.get(_VARIABLE, "auto")
    if wanted == "off":
        return None
    if wanted not in ("auto", *VARIANTS):
        raise InputError(f"{_VARIABLE} is {wanted!r}; use one of auto, off, {', '.join(VARIANTS)}")
    try:
        return load_variant(None if wanted == "auto" else wanted)
    except FileNotFoundError:
        warnings.warn(
            "pfedseq was built without its C kernel (no compiler was found), so the Mamba learner "
            "runs in plain PyTorch, some fifteen times slower; to use it, install a C compiler "
            "and reinstall pfedseq.",
            stacklevel=2,
        )
        return None


def load_variant(variant: str | None = None) -> FusedMamba:
    """The named variant, or the best one; FileNotFoundError where the extension is missing."""
    spec = importlib.util.find_spec("pfedseq.learners._mamba_kernel")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the extension pfedseq.learners._mamba_kernel is not built")
    library = ctypes.CDLL(spec.origin)
    if library.pfedseq_call_bytes() != ctypes.sizeof(_Call):
        raise InputError(
            f"{spec.origin} was built from another version of pfedseq; reinstall pfedseq"
        )
    best = VARIANTS[library.pfedseq_best_variant()]
    if variant is None:
        variant = best
    elif VARIANTS.index(variant) > VARIANTS.index(best):
        raise InputError(f"this processor cannot run the kernel's {variant} variant, only {best}")
    return FusedMamba(library, variant)


def _describe(
    window: Tensor, blocks: Sequence[BlockWeights], output: Tensor, signed: bool
) -> _Call:
    """The sizes and strides that all tasks of one call share."""
    _, dim, steps, clients = window.shape
    _, channels, states = blocks[0].A.shape
    return _Call(
        blocks=len(blocks),
        clients=clients,
        channels=channels,
        states=states,
        rank=blocks[0].step_proj.shape[2],
        width=blocks[0].conv_weight.shape[2],
        steps=steps,
        rows=dim,
        is_signed=signed,
        step_stride=window.stride(2),
        client_stride=window.stride(3),
        output_client_stride=output.stride(2),
    )


def _in_threads(run: Callable[[int, slice], None], layers: int, dim: int) -> None:
    """Call `run(layer, rows)` for every chunk of every layer, on all available cores.

    Does not use torch's number of threads: the engine sets it to one for its clients, which are
    idle while the server works.
    """
    chunks = [slice(begin, min(begin + _CHUNK_ROWS, dim)) for begin in range(0, dim, _CHUNK_ROWS)]
    with ThreadPoolExecutor(num_threads()) as pool:
        tasks = [pool.submit(run, layer, rows) for layer in range(layers) for rows in chunks]
        for task in tasks:
            task.result()


def _with_adjacent_rows(window: Tensor) -> Tensor:
    """The window itself if rows of D are adjacent in memory, else a copy in that layout."""
    if window.stride(1) == 1:
        return window
    return window.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)


def _pack(blocks: Iterable[BlockWeights]) -> Tensor:
    """All weights of each layer side by side, (K, size), as the kernel reads them."""
    return torch.cat([weight.flatten(1) for block in blocks for weight in block], dim=1)


def _unpack(packed: Tensor, blocks: Iterable[BlockWeights]) -> list[Tensor]:
    weights = [weight for block in blocks for weight in block]
    parts = torch.split(packed, [weight[0].numel() for weight in weights], dim=1)
    return [part.reshape(weight.shape) for part, weight in zip(parts, weights, strict=True)]


def _blocks(flat: Sequence[Tensor]) -> list[BlockWeights]:
    size = len(BlockWeights._fields)
    return [BlockWeights(*flat[i : i + size]) for i in range(0, len(flat), size)]
