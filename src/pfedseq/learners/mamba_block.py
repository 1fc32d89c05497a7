"""The two-block Mamba network of the paper's Appendix A in plain PyTorch.

One block adds to the residual stream r of every row, r (L, N), steps by clients,

    n       = r / sqrt(mean(r²) + ε) ⊙ norm                      RMSNorm over the N channels
    x, z    = in_proj n                                          N → E each
    u       = SiLU(conv_bias + Σ_w conv_weight_w x_{j-W+1+w})    causal, depthwise
    δ, B, C = x_proj u                                           E → rank, M, M
    step    = softplus(step_proj δ + step_bias)                  rank → E
    y       = selective_scan(u, step, A, B, C, skip)             Eq. (7)
    f(r)    = out_proj (y ⊙ SiLU(z))                             E → N

and the network's output is the sum of its blocks' outputs f at the last step. The last block's
z, C, y and f are therefore computed at that step only.

The letters, most of them Mamba's (Gu and Dao, 2023): N clients are the channels of r, E = expand·N
the wider channels inside a block, L the steps (rounds), W the convolution's width, M the states of
a channel; x is what the scan sees of the input and z what gates its output; δ, of rank numbers,
becomes the step size; A, B and C are the state's decay, its input and its output; `skip` is
Mamba's own D. The leading axes K (layers) and R (rows, adapter parameters) are ours.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pfedseq.learners.layerwise import run_layerwise
from pfedseq.learners.selective_scan import selective_scan

RMS_NORM_EPSILON = 1e-5


class BlockWeights(NamedTuple):
    """What one block computes with, for all K layers at once or (without the K) for one."""

    norm: Tensor  # (K, N)
    in_proj: Tensor  # (K, 2E, N): first x, then z
    conv_weight: Tensor  # (K, E, W)
    conv_bias: Tensor  # (K, E)
    x_proj: Tensor  # (K, rank + 2M, E): first δ, then B, then C
    step_proj: Tensor  # (K, E, rank)
    step_bias: Tensor  # (K, E)
    A: Tensor  # (K, E, M), negative
    skip: Tensor  # (K, E)
    out_proj: Tensor  # (K, N, E)


def chunked_network(window: Tensor, blocks: Sequence[BlockWeights]) -> Tensor:
    """The K networks on window (K, D, L, N), giving (K, D, N), in bounded memory."""
    steps = window.shape[2]
    channels, states = blocks[0].A.shape[1:]
    # Autograd keeps about three (E, M) tensors per step of the scan, and the projections' tensors.
    row_bytes = len(blocks) * steps * channels * (3 * states + 16) * window.element_size()
    networks = []
    for k in range(window.shape[0]):
        of_layer = [BlockWeights(*(weight[k] for weight in block)) for block in blocks]
        networks.append(partial(network, blocks=of_layer))
    return run_layerwise(window, networks, row_bytes)


def network(rows: Tensor, blocks: Sequence[BlockWeights]) -> Tensor:
    """One layer's network on rows (R, L, N): Σ_b f_b at the last step, (R, N)."""
    residual = rows
    total = torch.zeros_like(rows[:, -1])
    for block in blocks[:-1]:
        output = block_output(residual, block, last_only=False)
        residual = residual + output
        total = total + output[:, -1]
    return total + block_output(residual, blocks[-1], last_only=True).squeeze(1)


def block_output(residual: Tensor, weights: BlockWeights, *, last_only: bool) -> Tensor:
    """f(residual) of one block, (R, L, N); with `last_only` its last step, (R, 1, N)."""
    channels = weights.A.shape[0]
    normed = _normalise(residual, weights)
    u = _convolve(F.linear(normed, weights.in_proj[:channels]), weights)
    y = _select(u, weights, last_only=last_only)
    z = F.linear(_with_output(normed, last_only), weights.in_proj[channels:])  # (R, L or 1, E)
    return F.linear(y * F.silu(z), weights.out_proj)


def _normalise(residual: Tensor, weights: BlockWeights) -> Tensor:
    """n (R, L, N): RMSNorm over the N channels."""
    mean_square = residual.square().mean(-1, keepdim=True)
    return residual * torch.rsqrt(mean_square + RMS_NORM_EPSILON) * weights.norm


def _convolve(x: Tensor, weights: BlockWeights) -> Tensor:
    """u (R, L, E) of x (R, L, E): each channel by itself, no step sees a later one."""
    steps, width = x.shape[1], weights.conv_weight.shape[1]
    padded = F.pad(x, (0, 0, width - 1, 0))  # causal: zeros before the first step
    convolved = weights.conv_bias + sum(
        padded[:, w : w + steps] * weights.conv_weight[:, w] for w in range(width)
    )
    return F.silu(convolved)


def _select(u: Tensor, weights: BlockWeights, *, last_only: bool) -> Tensor:
    """y (R, L or 1, E) of u (R, L, E): the scan whose step size, B and C depend on its input."""
    states, rank = weights.A.shape[1], weights.step_proj.shape[1]
    projected = F.linear(u, weights.x_proj[: rank + states])
    step_input, B = torch.split(projected, [rank, states], dim=-1)  # (R, L, rank), (R, L, M)
    C = F.linear(_with_output(u, last_only), weights.x_proj[rank + states :])  # (R, L or 1, M)
    step_size = F.softplus(F.linear(step_input, weights.step_proj, weights.step_bias))
    return selective_scan(u, step_size, weights.A, B, C, weights.skip, last_only=last_only)


def _with_output(steps: Tensor, last_only: bool) -> Tensor:
    """Of (R, L, …) the steps whose output is wanted: all, or the last."""
    return steps[:, -1:] if last_only else steps
