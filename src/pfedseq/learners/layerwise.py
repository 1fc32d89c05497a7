"""K networks, one per backbone layer, over windows (K, D, L, N), in bounded memory."""

import os
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pfedseq.errors import InputError

_GRAPH_BYTES = 128 * 2**20
"""Memory limit of one chunk's autograd graph; it determines the rows of a chunk."""


def run_layerwise(
    window: Tensor, networks: Sequence[Callable[[Tensor], Tensor]], row_bytes: int
) -> Tensor:
    """Network k on layer k's rows (D, L, N) → (D, N), for all k: (K, D, N).

    Works layer by layer in chunks of D and recomputes a chunk's intermediate values in its backward
    pass, so that memory does not grow with K or D.

    Args:
        window: (K, D, L, N).
        networks: one per layer, each treating its rows independently.
        row_bytes: roughly the bytes that autograd keeps per row.
    """
    rows_per_chunk = max(1, _GRAPH_BYTES // row_bytes)
    outputs = []
    for layer, network in zip(window, networks, strict=True):
        chunks = [
            checkpoint(network, rows, use_reentrant=False, preserve_rng_state=False)
            for rows in torch.split(layer, rows_per_chunk)
        ]
        outputs.append(torch.cat(chunks))
    return torch.stack(outputs)


def check_window(window: Tensor, learner: nn.Module, num_layers: int, num_clients: int) -> None:
    """Refuses a window that is not (K, D, L, N) or not of the learner's dtype and device."""
    name = type(learner).__name__
    is_window = window.dim() == 4 and min(window.shape) >= 1
    if not is_window or (window.shape[0], window.shape[3]) != (num_layers, num_clients):
        raise InputError(
            f"{name} needs a window ({num_layers}, D, L, {num_clients}) with D and L of at least "
            f"1, not {tuple(window.shape)}"
        )
    weight = next(learner.parameters())
    if (window.dtype, window.device) != (weight.dtype, weight.device):
        raise InputError(
            f"the window is {window.dtype} on {window.device} but the learner is "
            f"{weight.dtype} on {weight.device}: move one of them"
        )


def check_sizes(learner: nn.Module, **sizes: int) -> None:
    """Refuses a size below 1, by its name."""
    for name, size in sizes.items():
        if size < 1:
            raise InputError(f"{type(learner).__name__} needs {name} of at least 1, not {size}")


def num_threads() -> int:
    """OMP_NUM_THREADS if set, else the number of cores available to this process."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    affinity = getattr(os, "sched_getaffinity", None)  # only on Linux
    return len(affinity(0)) if affinity else os.cpu_count() or 1
