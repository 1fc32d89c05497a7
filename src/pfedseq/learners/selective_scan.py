"""The selective scan of Mamba (Gu and Dao 2023, Algorithm 2), Eq. (7) of the paper.

For each row of the batch, channel e and step j, with the state h of M numbers per channel:

    h_j = exp(step_size_j · A) ⊙ h_{j-1} + step_size_j · x_j · B_j        h_0 = 0
    y_j = ⟨C_j, h_j⟩ + skip · x_j

Mamba's own names for `step_size` and `skip` are Δ and D, which mean other things here.

Shapes, with R rows, L steps, E channels and M states:

    x, step_size (R, L, E)    A (E, M)    B (R, L, M)    C (R, L, M)    skip (E,)    y (R, L, E)

With `last_only`, only y_L is computed: C may then hold its last step alone, (R, 1, M), and y is
(R, 1, E).
"""

import importlib
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor


def selective_scan(
    x: Tensor,
    step_size: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    skip: Tensor,
    *,
    last_only: bool = False,
) -> Tensor:
    """The scan by the fastest differentiable implementation for the tensors' device."""
    if x.is_cuda:
        kernel = _cuda_kernel()
        if kernel is not None:
            return _scan_cuda(kernel, x, step_size, A, B, C, skip, last_only=last_only)
    return _scan_torch(x, step_size, A, B, C, skip, last_only=last_only)


def _scan_torch(
    x: Tensor,
    step_size: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    skip: Tensor,
    *,
    last_only: bool,
) -> Tensor:
    """One step at a time over whole (R, E, M) states, so that nothing of size L·E·M is formed."""
    steps = x.shape[1]
    weighted = step_size * x  # (R, L, E)
    h = x.new_zeros(x.shape[0], *A.shape)  # (R, E, M)
    outputs = []
    for j in range(steps):
        decay = torch.exp(step_size[:, j, :, None] * A)  # (R, E, M)
        h = torch.addcmul(decay * h, weighted[:, j, :, None], B[:, j, None, :])
        back = j - steps  # counted from the end: C may hold the last step alone
        if not last_only or back == -1:
            outputs.append(torch.matmul(h, C[:, back, :, None]).squeeze(-1))
    return torch.stack(outputs, dim=1) + skip * x[:, -len(outputs) :]


def _cuda_kernel() -> Callable[..., Tensor] | None:
    """The scan of the `mamba_ssm` package, where it is installed."""
    try:
        module = importlib.import_module("mamba_ssm.ops.selective_scan_interface")
    except ImportError:
        return None
    return cast("Callable[..., Tensor]", module.selective_scan_fn)


def _scan_cuda(
    kernel: Callable[..., Tensor],
    x: Tensor,
    step_size: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    skip: Tensor,
    *,
    last_only: bool,
) -> Tensor:
    """`mamba_ssm` expects steps last, (R, E, L) and (R, M, L), and returns all steps."""
    if C.shape[1] < x.shape[1]:
        C = torch.nn.functional.pad(C, (0, 0, x.shape[1] - C.shape[1], 0))
    y = kernel(x.mT, step_size.mT, A, B.mT, C.mT, skip).mT
    return y[:, -1:] if last_only else y
