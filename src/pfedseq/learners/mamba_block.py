"""The two-block Mamba network of the paper's Appendix A in plain PyTorch.

One block adds to the residual stream r of every row, r (L, N), steps by clients,

    n       = r / sqrt(mean(r²) + ε) ⊙ norm                      RMSNorm over the N channels
    x, z    = in_proj n + (0, gate_bias)                         N → E each
    u       = SiLU(conv_bias + Σ_w conv_weight_w x_{j-W+1+w})    causal, depthwise
    δ, B, C = x_proj u + (0, scan_bias)                          E → rank, M, M
    step    = softplus(step_proj δ + step_bias)                  rank → E
    y       = selective_scan(u, step, A, B, C, skip)             Eq. (7)
    f(r)    = out_proj (y ⊙ SiLU(z))                             E → N

and the network's output is the sum of its blocks' outputs f at the last step. The last block's
z, C, y and f are therefore computed at that step only. With both biases at zero this is Mamba as
used for language. Unlike word embeddings, updates have a meaningful sign and size. A *signed* block
has constant parts in its gate, B and C, so that a part of f is linear in r, and leaves out the norm
of single steps (n = r ⊙ norm) and the SiLU before the scan (u is the convolution itself).

The letters, most of them Mamba's (Gu and Dao, 2023): N clients are the channels of r, E = expand·N
the wider channels inside a block, L the steps (rounds), W the convolution's width, M the states of
a channel; x is the input of the scan and z gates its output; δ, of rank numbers,
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
    """The weights of one block, for all K layers at once or (without the K) for one layer."""

    norm: Tensor  # (K, N)
    in_proj: Tensor  # (K, 2E, N): first x, then z
    gate_bias: Tensor  # (K, E)
    conv_weight: Tensor  # (K, E, W)
    conv_bias: Tensor  # (K, E)
    x_proj: Tensor  # (K, rank + 2M, E): first δ, then B, then C
    scan_bias: Tensor  # (K, 2M): first B, then C
    step_proj: Tensor  # (K, E, rank)
    step_bias: Tensor  # (K, E)
    A: Tensor  # (K, E, M), negative
    skip: Tensor  # (K, E)
    out_proj: Tensor  # (K, N, E)


def chunked_network(window: Tensor, blocks: Sequence[BlockWeights], *, signed: bool) -> Tensor:
    """The K networks on window (K, D, L, N), giving (K, D, N), in bounded memory."""
    steps = window.shape[2]
    channels, states = blocks[0].A.shape[1:]
    # Autograd keeps about three (E, M) tensors per step of the scan, and the projections' tensors.
    row_bytes = len(blocks) * steps * channels * (3 * states + 16) * window.element_size()
    networks = []
    for k in range(window.shape[0]):
        of_layer = [BlockWeights(*(weight[k] for weight in block)) for block in blocks]
        networks.append(partial(network, blocks=of_layer, signed=signed))
    return run_layerwise(window, networks, row_bytes)


def network(rows: Tensor, blocks: Sequence[BlockWeights], *, signed: bool) -> Tensor:
    """One layer's network on rows (R, L, N): Σ_b f_b at the last step, (R, N)."""
    residual = rows
    total = torch.zeros_like(rows[:, -1])
    for block in blocks[:-1]:
        output = block_output(residual, block, signed=signed, last_only=False)
        residual = residual + output
        total = total + output[:, -1]
    last = block_output(residual, blocks[-1], signed=signed, last_only=True)
    return total + last.squeeze(1)


def block_output(
    residual: Tensor, weights: BlockWeights, *, signed: bool, last_only: bool
) -> Tensor:
    """f(residual) of one block, (R, L, N); with `last_only` its last step, (R, 1, N)."""
    channels = weights.A.shape[0]
    normed = _normalise(residual, weights, signed=signed)
    u = _convolve(F.linear(normed, weights.in_proj[:channels]), weights, signed=signed)
    y = _select(u, weights, last_only=last_only)
    z = F.linear(
        _with_output(normed, last_only), weights.in_proj[channels:], weights.gate_bias
    )  # (R, L or 1, E)
    return F.linear(y * F.silu(z), weights.out_proj)


def _normalise(residual: Tensor, weights: BlockWeights, *, signed: bool) -> Tensor:
    """n (R, L, N): RMSNorm over the N channels; a signed block keeps the sizes of its steps."""
    normed = residual * weights.norm
    if signed:
        return normed
    mean_square = residual.square().mean(-1, keepdim=True)
    return normed * torch.rsqrt(mean_square + RMS_NORM_EPSILON)


def _convolve(x: Tensor, weights: BlockWeights, *, signed: bool) -> Tensor:
    """u (R, L, E) from x (R, L, E): a causal convolution of each channel."""
    steps, width = x.shape[1], weights.conv_weight.shape[1]
    padded = F.pad(x, (0, 0, width - 1, 0))  # causal: zeros before the first step
    convolved = weights.conv_bias + sum(
        padded[:, w : w + steps] * weights.conv_weight[:, w] for w in range(width)
    )
    return convolved if signed else F.silu(convolved)


def _select(u: Tensor, weights: BlockWeights, *, last_only: bool) -> Tensor:
    """y (R, L or 1, E) from u (R, L, E): the scan whose step size, B and C depend on its input."""
    states, rank = weights.A.shape[1], weights.step_proj.shape[1]
    projected = F.linear(u, weights.x_proj[: rank + states])
    step_input, B = torch.split(projected, [rank, states], dim=-1)  # (R, L, rank), (R, L, M)
    B = B + weights.scan_bias[:states]
    C = F.linear(
        _with_output(u, last_only), weights.x_proj[rank + states :], weights.scan_bias[states:]
    )  # (R, L or 1, M)
    step_size = F.softplus(F.linear(step_input, weights.step_proj, weights.step_bias))
    return selective_scan(u, step_size, weights.A, B, C, weights.skip, last_only=last_only)


def _with_output(steps: Tensor, last_only: bool) -> Tensor:
    """The steps of (R, L, …) whose output is needed: all, or the last."""
    return steps[:, -1:] if last_only else steps
