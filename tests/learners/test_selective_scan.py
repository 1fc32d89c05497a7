"""The selective scan: closed forms, every path against the step-by-step reference, gradients."""

import sys
import types

import pytest
import torch
from torch import Tensor

from pfedseq.learners import selective_scan as module
from pfedseq.learners.selective_scan import selective_scan
from tests.learners.reference import selective_scan_reference

NAMES = ["x", "step_size", "A", "B", "C", "skip"]
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]

SHAPES = [(1, 1, 1, 1), (3, 1, 2, 4), (2, 5, 1, 3), (4, 7, 3, 1), (3, 6, 4, 5)]
"""(rows, steps, channels, states)"""


def random_inputs(
    rows: int, steps: int, channels: int, states: int, dtype: torch.dtype = torch.float64
) -> Inputs:
    generator = torch.Generator().manual_seed(rows + 10 * steps + 100 * channels + 1000 * states)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    inputs = (
        normal(rows, steps, channels),
        normal(rows, steps, channels).exp(),
        -normal(channels, states).exp(),
        normal(rows, steps, states),
        normal(rows, steps, states),
        normal(channels),
    )
    x, step_size, a, b, c, skip = (tensor.to(dtype).requires_grad_() for tensor in inputs)
    return x, step_size, a, b, c, skip


def test_two_steps_by_hand() -> None:
    """x = (2, 3), step sizes (ln 2, 1), A = −1, B = (5, 7), C = (11, 13), skip = 17.

    h_1 = ln2·2·5 = 10 ln2;  h_2 = e⁻¹·10 ln2 + 1·3·7;  y_1 = 11 h_1 + 34;  y_2 = 13 h_2 + 51.
    """
    ln2 = torch.log(torch.tensor(2.0, dtype=torch.float64))
    one = torch.ones(1, 1, dtype=torch.float64)
    arguments = (
        torch.tensor([[[2.0], [3.0]]], dtype=torch.float64),
        torch.stack([ln2, torch.ones_like(ln2)]).reshape(1, 2, 1),
        -one,
        torch.tensor([[[5.0], [7.0]]], dtype=torch.float64),
        torch.tensor([[[11.0], [13.0]]], dtype=torch.float64),
        torch.tensor([17.0], dtype=torch.float64),
    )
    h1 = 10 * ln2
    h2 = torch.exp(-one[0, 0]) * h1 + 21
    expected = torch.stack([11 * h1 + 34, 13 * h2 + 51]).reshape(1, 2, 1)
    for scan in (selective_scan, selective_scan_reference):
        torch.testing.assert_close(scan(*arguments), expected)
        torch.testing.assert_close(scan(*arguments, last_only=True), expected[:, -1:])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)], ids=["f64", "f32"]
)
def test_equals_the_reference_with_every_gradient(
    shape: tuple[int, int, int, int], last_only: bool, dtype: torch.dtype, tolerance: float
) -> None:
    expected = selective_scan_reference(*random_inputs(*shape), last_only=last_only)
    direction = torch.randn(expected.shape, dtype=torch.float64)
    exact = random_inputs(*shape)
    selective_scan_reference(*exact, last_only=last_only).backward(direction)
    inputs = random_inputs(*shape, dtype=dtype)
    y = selective_scan(*inputs, last_only=last_only)
    assert y.dtype == dtype
    y.backward(direction.to(dtype))
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)
    for name, tensor, reference in zip(NAMES, inputs, exact, strict=True):
        assert tensor.grad is not None
        assert reference.grad is not None
        torch.testing.assert_close(
            tensor.grad.double(),
            reference.grad,
            rtol=tolerance,
            atol=tolerance * reference.grad.abs().max().item(),
            msg=lambda text, name=name: f"gradient of {name}: {text}",
        )


@pytest.mark.parametrize("last_only", [False, True])
def test_gradcheck_once_and_twice(last_only: bool) -> None:
    def scan(*inputs: Tensor) -> Tensor:
        return selective_scan(*inputs, last_only=last_only)  # type: ignore[call-arg]

    inputs = random_inputs(2, 3, 2, 2)
    assert torch.autograd.gradcheck(scan, inputs)
    assert torch.autograd.gradgradcheck(scan, inputs)


def test_last_step_alone_of_c_is_enough() -> None:
    x, step_size, a, b, c, skip = random_inputs(3, 5, 2, 4)
    expected = selective_scan_reference(x, step_size, a, b, c, skip)[:, -1:]
    for scan in (selective_scan, selective_scan_reference):
        y = scan(x, step_size, a, b, c[:, -1:], skip, last_only=True)
        torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("channels", [1, 2])
def test_cuda_kernel_is_called_by_its_documented_signature(
    monkeypatch: pytest.MonkeyPatch, last_only: bool, channels: int
) -> None:
    """A stand-in for `mamba_ssm` with its layouts: u, Δ (R, E, L), A (E, M), B, C (R, M, L), D."""
    calls = []

    def selective_scan_fn(
        u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor
    ) -> Tensor:
        calls.append(u.shape)
        arguments = (u.mT, delta.mT, A, B.mT, C.mT, D)
        return selective_scan_reference(*arguments).mT

    interface = types.ModuleType("mamba_ssm.ops.selective_scan_interface")
    interface.selective_scan_fn = selective_scan_fn  # type: ignore[attr-defined]
    for name in ("mamba_ssm", "mamba_ssm.ops"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)

    x, step_size, a, b, c, skip = random_inputs(3, 5, channels, 4)
    kernel = module._cuda_kernel()
    assert kernel is selective_scan_fn
    c = c[:, -1:] if last_only else c
    y = module._scan_cuda(kernel, x, step_size, a, b, c, skip, last_only=last_only)
    expected = selective_scan_reference(x, step_size, a, b, c, skip, last_only=last_only)
    torch.testing.assert_close(y, expected)
    assert calls == [(3, channels, 5)]


def test_without_mamba_ssm_there_is_no_cuda_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mamba_ssm", None)
    monkeypatch.delitem(sys.modules, "mamba_ssm.ops.selective_scan_interface", raising=False)
    assert module._cuda_kernel() is None
