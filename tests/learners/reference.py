"""The learner and its scan written down step by step, sharing no code with what they judge.

With it, what the tests of the Mamba learner share: learners, windows and comparisons.
"""

import math

import torch
from torch import Tensor

from pfedseq.learners.mamba import MambaBlock, MambaLearner


def reference_learner(learner: MambaLearner, window: Tensor) -> Tensor:
    """ξ (K, D, N): all steps of all blocks, one layer and one step at a time."""
    outputs = []
    for k in range(window.shape[0]):
        residual = window[k]  # (D, L, N)
        for block in learner.blocks:
            assert isinstance(block, MambaBlock)
            residual = residual + reference_block(residual, block, k, learner.signed)
        outputs.append(residual[:, -1] - window[k, :, -1])
    return torch.stack(outputs)


def reference_block(residual: Tensor, block: MambaBlock, k: int, signed: bool) -> Tensor:
    steps = residual.shape[1]
    channels, width = block.conv_weight[k].shape
    rank = block.step_proj.shape[2]
    states = block.A_log.shape[2]
    xs, zs = [], []
    for j in range(steps):
        r = residual[:, j]
        rms = ((r**2).sum(-1) / r.shape[-1] + 1e-5) ** 0.5
        rms = torch.ones_like(rms) if signed else rms
        projected = (r / rms[:, None] * block.norm[k]) @ block.in_proj[k].T
        xs.append(projected[:, :channels])
        zs.append(projected[:, channels:] + block.gate_bias[k])
    us, step_sizes, bs, cs = [], [], [], []
    for j in range(steps):
        convolved = block.conv_bias[k].expand_as(xs[0])
        for back in range(min(width, j + 1)):  # the last tap weighs the newest step
            convolved = convolved + block.conv_weight[k][:, width - 1 - back] * xs[j - back]
        u = convolved if signed else convolved / (1 + torch.exp(-convolved))
        projected = u @ block.x_proj[k].T
        pre = projected[:, :rank] @ block.step_proj[k].T + block.step_bias[k]
        us.append(u)
        step_sizes.append(torch.log1p(torch.exp(pre)))
        bs.append(projected[:, rank : rank + states] + block.scan_bias[k, :states])
        cs.append(projected[:, rank + states :] + block.scan_bias[k, states:])
    u, step_size, b, c = (torch.stack(list_, dim=1) for list_ in (us, step_sizes, bs, cs))
    y = selective_scan_reference(u, step_size, -torch.exp(block.A_log[k]), b, c, block.skip[k])
    z = torch.stack(zs, dim=1)
    return (y * z * torch.sigmoid(z)) @ block.out_proj[k].T


def selective_scan_reference(
    x: Tensor,
    step_size: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    skip: Tensor,
    *,
    last_only: bool = False,
) -> Tensor:
    """The recurrence written down channel by channel and state by state: slow, and plainly right.

    Every other path is tested against it, in float64.
    """
    rows, steps, channels = x.shape
    outputs = []
    for e in range(channels):
        y = [skip[e] * x[:, j, e] for j in range(steps)]
        for m in range(A.shape[1]):
            h = x.new_zeros(rows)
            for j in range(steps):
                decay = torch.exp(step_size[:, j, e] * A[e, m])
                h = decay * h + step_size[:, j, e] * x[:, j, e] * B[:, j, m]
                back = j - steps  # counted from the end: C may hold the last step alone
                if not last_only or back == -1:
                    y[j] = y[j] + C[:, back, m] * h
        outputs.append(torch.stack(y[-1:] if last_only else y, dim=1))
    return torch.stack(outputs, dim=2)


def spread_parameters(learner: MambaLearner, seed: int) -> None:
    """Moves every parameter off its initial value, so that no two formulas agree by accident."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in learner.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter += (0.3 / math.sqrt(parameter.shape[-1])) * noise


def make_learner(
    num_layers: int, num_clients: int, state_dim: int, seed: int = 0, **options: bool | int
) -> MambaLearner:
    generator = torch.Generator().manual_seed(seed)
    learner = MambaLearner(
        num_layers,
        num_clients,
        state_dim,
        generator=generator,
        **options,  # type: ignore[arg-type]
    )
    spread_parameters(learner, seed + 1)
    return learner


def make_window(num_layers: int, num_clients: int, dim: int, steps: int, seed: int = 3) -> Tensor:
    """(K, D, L, N), stored as a stack of rounds (L, N, K, D)."""
    generator = torch.Generator().manual_seed(seed)
    stored = torch.randn(steps, num_clients, num_layers, dim, generator=generator)
    return stored.permute(2, 3, 0, 1)


def named_gradients(learner: MambaLearner, window: Tensor, output: Tensor) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    direction = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    names = ["window", *(name for name, _ in learner.named_parameters())]
    gradients = torch.autograd.grad(
        output, [window, *learner.parameters()], direction.to(output.dtype)
    )
    return dict(zip(names, gradients, strict=True))


def assert_like_the_reference(learner: MambaLearner, window: Tensor, tolerance: float) -> None:
    """Output and every gradient, relative to each tensor's largest entry."""
    exact_learner = MambaLearner(
        learner.num_layers,
        learner.num_clients,
        learner.blocks[0].A_log.shape[2],
        num_blocks=len(learner.blocks),
        expand=learner.blocks[0].skip.shape[1] // learner.num_clients,
        conv_width=learner.blocks[0].conv_weight.shape[2],
        signed=learner.signed,
    ).double()
    exact_learner.load_state_dict(learner.state_dict())
    exact_window = window.detach().double().requires_grad_()
    expected = reference_learner(exact_learner, exact_window)
    window = window.detach().requires_grad_()
    output = learner(window)
    assert output.dtype == window.dtype
    pairs = {"output": (output, expected)}
    exact_gradients = named_gradients(exact_learner, exact_window, expected)
    for name, gradient in named_gradients(learner, window, output).items():
        pairs[name] = (gradient, exact_gradients[name])
    for name, (actual, exact) in pairs.items():
        scale = max(exact.abs().max().item(), 1e-6)
        error = (actual.double() - exact).abs().max().item() / scale
        assert error < tolerance, f"{name}: relative error {error:.2e}"
