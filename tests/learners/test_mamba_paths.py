"""Every path through the Mamba network against the step-by-step reference in float64.

The paths: chunked PyTorch in float64 and float32, and each variant of the fused kernel.
"""

import ctypes
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pfedseq.errors import InputError
from pfedseq.learners import MambaLearner
from pfedseq.learners import fused_mamba as fused_module
from pfedseq.learners.fused_mamba import fused_mamba, load_variant
from pfedseq.learners.layerwise import num_threads
from pfedseq.learners.mamba import MambaBlock
from tests.learners.reference import (
    assert_like_the_reference,
    make_learner,
    make_window,
    named_gradients,
)

SHAPES = [
    # K, N, D, L, M
    (1, 1, 1, 1, 1),
    (2, 1, 5, 3, 4),
    (1, 3, 17, 6, 5),
    (2, 10, 9, 5, 6),
    (1, 20, 8, 4, 3),  # rank 2
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("tiny_chunks")
def test_chunked_path_equals_the_reference(shape: tuple[int, int, int, int, int]) -> None:
    layers, clients, dim, steps, states = shape
    learner = make_learner(layers, clients, states).double()
    assert_like_the_reference(learner, make_window(layers, clients, dim, steps).double(), 1e-11)


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_paths_equal_the_reference(
    shape: tuple[int, int, int, int, int], path: str
) -> None:
    layers, clients, dim, steps, states = shape
    learner = make_learner(layers, clients, states)
    # The norm of a single client leaves hardly a derivative by the window: all is rounding.
    tolerance = 1e-3 if clients == 1 else 2e-5
    assert_like_the_reference(learner, make_window(layers, clients, dim, steps), tolerance)


OPTIONS = pytest.mark.parametrize(
    "options",
    [
        {"signed": True},
        {"signed": True, "num_blocks": 1},
        {"num_blocks": 1},
        {"num_blocks": 3},
        {"expand": 3},
        {"conv_width": 1},
        {"conv_width": 6},  # wider than the window
    ],
    ids=str,
)


@OPTIONS
def test_options_equal_the_reference_in_float64(options: dict[str, bool | int]) -> None:
    learner = make_learner(2, 3, 4, **options).double()
    assert_like_the_reference(learner, make_window(2, 3, 5, 4).double(), 1e-11)


@OPTIONS
def test_options_equal_the_reference_in_float32(options: dict[str, bool | int], path: str) -> None:
    learner = make_learner(2, 3, 4, **options)
    assert_like_the_reference(learner, make_window(2, 3, 5, 4), 2e-5)


@settings(max_examples=40, deadline=None)
@given(
    num_layers=st.integers(1, 2),
    num_clients=st.integers(1, 18),
    dim=st.integers(1, 35),
    steps=st.integers(1, 8),
    state_dim=st.integers(1, 9),
    num_blocks=st.integers(1, 3),
    expand=st.integers(1, 3),
    conv_width=st.integers(1, 6),
)
def test_kernel_equals_the_plain_path_at_any_size(
    num_layers: int, num_clients: int, dim: int, steps: int, state_dim: int, **options: int
) -> None:
    """In float64 the plain path is exact enough to judge the kernel by; see the tests above."""
    kernel = fused_mamba()
    if kernel is None:
        pytest.skip("the C kernel is not built")
    learner = make_learner(num_layers, num_clients, state_dim, **options)
    exact_learner = make_learner(num_layers, num_clients, state_dim, **options).double()
    window = make_window(num_layers, num_clients, dim, steps).requires_grad_()
    exact_window = window.detach().double().requires_grad_()
    output = kernel(window, [b.weights() for b in learner.blocks], signed=False)  # type: ignore[operator]
    exact = exact_learner(exact_window)
    expected = {"output": exact} | named_gradients(exact_learner, exact_window, exact)
    for name, value in ({"output": output} | named_gradients(learner, window, output)).items():
        # The norm of a single client leaves hardly a derivative by the window: all is rounding.
        scale = max(expected[name].abs().max().item(), 1e-3 if num_clients > 1 else 1.0)
        error = (value - expected[name]).abs().max().item() / scale
        assert error < 1e-4, f"{name}: relative error {error:.2e}"


def test_any_strides_give_the_same_bits(path: str) -> None:
    """Rows adjacent or not, clients or steps expanded, a view into a longer history."""
    learner = make_learner(2, 3, 4)
    stored = make_window(2, 3, 9, 6)
    expanded = stored[:, :, :1].expand(-1, -1, 4, -1)
    for window in (stored, stored[:, 2:7, 1:5], expanded):
        gradients = []
        for layout in (window, window.contiguous()):
            layout = layout.detach().requires_grad_()
            output = learner(layout)
            gradients.append((output, *named_gradients(learner, layout, output).values()))
        for first, second in zip(*gradients, strict=True):
            assert torch.equal(first, second)


@pytest.mark.parametrize("path", ["baseline", "avx2", "avx512"], indirect=True)
def test_the_number_of_threads_changes_no_bit(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(2, 3, 4)
    window = make_window(2, 3, 1100, 4).requires_grad_()  # three chunks, the last one short
    results = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        output = learner(window)
        results.append([output, *named_gradients(learner, window, output).values()])
    for other in results[1:]:
        for first, second in zip(results[0], other, strict=True):
            assert torch.equal(first, second)


@pytest.mark.parametrize(("wanted", "threads"), [("3", 3), ("0", 2), ("2,4", 2), ("", 2)])
def test_threads_are_those_asked_for_or_the_cores_we_may_use(
    wanted: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {4, 7}, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    assert num_threads() == threads


def test_several_chunks_equal_the_plain_path(path: str) -> None:
    """A longer D than the step-by-step reference could follow: judged by PyTorch in float64."""
    learner = make_learner(1, 4, 6)
    window = make_window(1, 4, 1037, 5).requires_grad_()
    output = learner(window)
    exact = make_learner(1, 4, 6).double()
    exact_window = window.detach().double().requires_grad_()
    exact_output = exact(exact_window)
    torch.testing.assert_close(output.double(), exact_output, rtol=1e-5, atol=1e-6)
    expected = named_gradients(exact, exact_window, exact_output)
    for name, gradient in named_gradients(learner, window, output).items():
        error = (gradient - expected[name]).abs().max() / expected[name].abs().max()
        assert error < 5e-6, name


def test_only_the_parameters_need_a_gradient(path: str) -> None:
    """What training does: one backward pass along a direction, the window being data."""
    learner = make_learner(2, 3, 4)
    window = make_window(2, 3, 9, 5)
    learner(window).backward(torch.ones(2, 9, 3))
    expected = named_sum_gradients(learner, window.clone().requires_grad_())
    for name, parameter in learner.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, expected[name]), name
    assert window.grad is None


def named_sum_gradients(learner: MambaLearner, window: Tensor) -> dict[str, Tensor]:
    names, parameters = zip(*learner.named_parameters(), strict=True)
    gradients = torch.autograd.grad(learner(window).sum(), [window, *parameters])
    return dict(zip(names, gradients[1:], strict=True))


def test_second_derivatives(path: str) -> None:
    learner = make_learner(1, 2, 3)
    exact = make_learner(1, 2, 3).double()
    second = []
    for network in (learner, exact):
        weight = network.get_parameter("blocks.0.in_proj")
        window = make_window(1, 2, 3, 4).to(weight.dtype).requires_grad_()
        (first,) = torch.autograd.grad(network(window).square().sum(), weight, create_graph=True)
        second.append(torch.autograd.grad(first.square().sum(), [window, weight]))
    for actual, expected in zip(*second, strict=True):
        error = (actual - expected).abs().max() / expected.abs().max()
        assert error < 1e-4


def test_extreme_inputs_stay_right(path: str) -> None:
    """Large step sizes (decays that underflow), large gates and very small windows."""
    learner = make_learner(1, 3, 4)
    with torch.no_grad():
        for block in learner.blocks:
            assert isinstance(block, MambaBlock)
            block.step_bias[:, 0] = 60.0
            block.step_bias[:, 1] = -60.0
            block.A_log += 3.0
            block.in_proj[:, -2:] *= 100.0
    for scale in (1e-6, 1e4):
        assert_like_the_reference(learner, make_window(1, 3, 9, 6) * scale, 2e-5)


@pytest.mark.usefixtures("tiny_chunks")
def test_gradcheck_in_float64() -> None:
    learner = make_learner(2, 2, 2).double()
    window = make_window(2, 2, 2, 3).double().requires_grad_()
    names = [name for name, _ in learner.named_parameters()]

    def call(window: Tensor, *values: Tensor) -> Tensor:
        parameters = dict(zip(names, values, strict=True))
        output: Tensor = torch.func.functional_call(learner, parameters, (window,))
        return output

    inputs = (window, *(p.detach().requires_grad_() for p in learner.parameters()))
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)


def test_nan_reaches_the_output_of_its_row(path: str) -> None:
    learner = make_learner(1, 3, 4)
    window = make_window(1, 3, 6, 4).clone()
    window[0, 2, 0, 1] = torch.nan  # the oldest step
    output = learner(window)
    assert output[0, 2].isnan().all()
    assert output.isnan().any(-1).sum() == 1


def test_nan_weights_and_directions_reach_the_gradients(path: str) -> None:
    window = make_window(1, 3, 6, 4)
    learner = make_learner(1, 3, 4)
    output = learner(window)
    direction = torch.zeros_like(output)
    direction[0, 1, 2] = torch.nan
    output.backward(direction)
    for name, parameter in learner.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.isnan().any(), name
    for name in ("in_proj", "conv_bias", "x_proj", "step_bias", "A_log", "skip", "out_proj"):
        for block in range(2):
            broken = make_learner(1, 3, 4)
            with torch.no_grad():
                broken.get_parameter(f"blocks.{block}.{name}").fill_(torch.nan)
            assert broken(window).isnan().all(), name


def test_a_missing_extension_is_said_once_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    window = make_window(1, 3, 6, 4)
    learner = make_learner(1, 3, 4)
    monkeypatch.setenv("PFEDSEQ_MAMBA_KERNEL", "off")
    fused_mamba.cache_clear()
    expected = learner(window)
    monkeypatch.delenv("PFEDSEQ_MAMBA_KERNEL")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    fused_mamba.cache_clear()
    try:
        with pytest.warns(UserWarning, match="without its C kernel"):
            assert torch.equal(learner(window), expected)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            learner(window)
    finally:
        fused_mamba.cache_clear()


def test_a_kernel_of_another_version_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if path == "off":
        pytest.skip("this path has no kernel")
    fields = [*fused_module._Call._fields_, ("added", ctypes.c_int64)]
    newer = type("_Call", (ctypes.Structure,), {"_fields_": fields})
    monkeypatch.setattr(fused_module, "_Call", newer)
    with pytest.raises(InputError, match="built from another version of pfedseq"):
        load_variant(path)


def test_an_unknown_variant_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFEDSEQ_MAMBA_KERNEL", "avx1024")
    fused_mamba.cache_clear()
    try:
        with pytest.raises(InputError, match="'avx1024'; use one of auto, off, baseline"):
            fused_mamba()
    finally:
        fused_mamba.cache_clear()
