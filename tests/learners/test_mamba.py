"""The Mamba learner: every path against the step-by-step reference, and against public Mambas."""

import ctypes
import math
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from pfedseq.errors import InputError
from pfedseq.learners import MambaLearner, layerwise
from pfedseq.learners import fused_mamba as fused_module
from pfedseq.learners.fused_mamba import fused_mamba, load_variant
from pfedseq.learners.mamba import MambaBlock
from tests.learners.reference import reference_learner, spread_parameters

SHAPES = [
    # K, N, D, L, M
    (1, 1, 1, 1, 1),
    (2, 1, 5, 3, 4),
    (1, 3, 17, 6, 5),
    (2, 10, 9, 5, 6),
    (1, 20, 8, 4, 3),  # rank 2
]


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
        pass_through=learner.pass_through,
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


@pytest.fixture
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a row or two, so that a small test crosses chunk borders."""
    monkeypatch.setattr(layerwise, "_GRAPH_BYTES", 40_000)


@pytest.fixture(params=["off", "baseline", "avx2", "avx512"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every way that float32 on the CPU can go: plain PyTorch and each variant of the kernel."""
    variant: str = request.param
    if variant != "off":
        try:
            load_variant(variant)
        except (FileNotFoundError, InputError) as reason:
            pytest.skip(str(reason))
    monkeypatch.setenv("PFEDSEQ_MAMBA_KERNEL", variant)
    fused_mamba.cache_clear()
    yield variant
    fused_mamba.cache_clear()


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
    assert_like_the_reference(learner, make_window(layers, clients, dim, steps), 2e-5)


OPTIONS = pytest.mark.parametrize(
    "options",
    [
        {"pass_through": False},
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


def copy_into_transformers(block: MambaBlock, k: int, hidden: int) -> torch.nn.Module:
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaBlock as PublicBlock

    config = MambaConfig(
        hidden_size=hidden,
        state_size=block.A_log.shape[2],
        num_hidden_layers=2,
        conv_kernel=block.conv_weight.shape[2],
        expand=block.skip.shape[1] // hidden,
        time_step_rank=block.step_proj.shape[2],
        layer_norm_epsilon=1e-5,
        residual_in_fp32=False,
        use_mambapy=False,
    )
    public = PublicBlock(config, layer_idx=0).double()
    copy_mixer_weights(public.mixer, block, k)
    public.norm.weight.data.copy_(block.norm[k])
    return public


def copy_mixer_weights(mixer: torch.nn.Module, block: MambaBlock, k: int) -> None:
    values = {
        "in_proj.weight": block.in_proj[k],
        "conv1d.weight": block.conv_weight[k].unsqueeze(1),
        "conv1d.bias": block.conv_bias[k],
        "x_proj.weight": block.x_proj[k],
        "dt_proj.weight": block.step_proj[k],
        "dt_proj.bias": block.step_bias[k],
        "A_log": block.A_log[k],
        "D": block.skip[k],
        "out_proj.weight": block.out_proj[k],
    }
    mixer.load_state_dict({name: value.detach() for name, value in values.items()})


def test_is_the_mamba_of_transformers() -> None:
    learner = make_learner(2, 17, 5).double()
    window = make_window(2, 17, 6, 7).double()
    expected = []
    for k in range(2):
        residual = window[k]
        for block in learner.blocks:
            assert isinstance(block, MambaBlock)
            residual = copy_into_transformers(block, k, 17)(residual)
        expected.append(residual[:, -1])
    torch.testing.assert_close(learner(window), torch.stack(expected))


def test_is_the_mamba_of_mambapy() -> None:
    mambapy = pytest.importorskip("mambapy.mamba")
    learner = make_learner(2, 17, 5)
    window = make_window(2, 17, 6, 7)
    expected = []
    for k in range(2):
        config = mambapy.MambaConfig(d_model=17, n_layers=2, d_state=5)
        public = mambapy.Mamba(config)
        for layer, block in zip(public.layers, learner.blocks, strict=True):
            assert isinstance(block, MambaBlock)
            copy_mixer_weights(layer.mixer, block, k)
            layer.norm.weight.data.copy_(block.norm[k])
        expected.append(public(window[k])[:, -1])
    torch.testing.assert_close(learner(window), torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_initial_values_are_those_of_mambas_authors() -> None:
    """Bounds and moments of each distribution, on enough draws to tell them apart."""
    learner = MambaLearner(12, 40, generator=torch.Generator().manual_seed(0))
    for block in learner.blocks:
        assert isinstance(block, MambaBlock)
        assert block.norm.eq(1).all()
        assert block.skip.eq(1).all()
        expected = torch.arange(1, 17).expand(12, 80, 16).float()
        torch.testing.assert_close(block.A_log.exp(), expected)
        bounds = {
            "in_proj": 40**-0.5,
            "conv_weight": 4**-0.5,
            "conv_bias": 4**-0.5,
            "x_proj": 80**-0.5,
            "step_proj": 3**-0.5,  # rank ⌈40/16⌉
            "out_proj": 80**-0.5 / math.sqrt(2),  # rescaled by 1/√blocks
        }
        for name, bound in bounds.items():
            values = block.get_parameter(name)
            assert values.abs().max() <= bound
            uniform_std = bound / math.sqrt(3)
            assert values.std().item() == pytest.approx(uniform_std, rel=0.05), name
            assert abs(values.mean().item()) < 0.1 * bound, name
        logs = torch.nn.functional.softplus(block.step_bias).log()
        assert logs.min() >= math.log(1e-3) - 1e-3
        assert logs.max() <= math.log(1e-1) + 1e-3
        assert logs.mean().item() == pytest.approx(math.log(1e-2), abs=0.15)
        assert logs.std().item() == pytest.approx(math.log(100) / math.sqrt(12), rel=0.1)


def test_a_generator_decides_the_initial_values() -> None:
    def state(seed: int) -> dict[str, Tensor]:
        learner = MambaLearner(2, 3, generator=torch.Generator().manual_seed(seed))
        return learner.state_dict()

    torch.manual_seed(1)
    first = state(5)
    torch.manual_seed(2)
    for name, value in state(5).items():
        assert torch.equal(value, first[name]), name
    assert not torch.equal(state(6)["blocks.0.in_proj"], first["blocks.0.in_proj"])
    layers = first["blocks.0.in_proj"]
    assert not torch.equal(layers[0], layers[1])


def test_pass_through_adds_exactly_the_newest_step(path: str) -> None:
    window = make_window(2, 3, 5, 4)
    with_input = make_learner(2, 3, 4, pass_through=True)(window)
    without = make_learner(2, 3, 4, pass_through=False)(window)
    assert torch.equal(with_input, window[:, :, -1] + without)


def test_zero_last_projection_silences_the_last_block_only(path: str) -> None:
    options = {"zero_last_projection": True, "pass_through": False}
    generator = torch.Generator().manual_seed(0)
    learner = MambaLearner(2, 3, num_blocks=1, generator=generator, **options)
    window = make_window(2, 3, 5, 4)
    output = learner(window)
    assert output.eq(0).all()
    output.backward(torch.ones_like(output))
    gradient = learner.get_parameter("blocks.0.out_proj").grad
    assert gradient is not None
    assert gradient.abs().min() > 0, "the projection must be able to leave zero"

    two_blocks = MambaLearner(2, 3, generator=generator, **options)
    assert two_blocks.get_parameter("blocks.0.out_proj").abs().min() > 0
    assert two_blocks.get_parameter("blocks.1.out_proj").eq(0).all()


def test_layers_and_rows_do_not_mix(path: str) -> None:
    learner = make_learner(3, 2, 4)
    window = make_window(3, 2, 6, 4)
    before = learner(window)
    changed = window.clone()
    changed[1, 4] += 1
    after = learner(changed)
    differs = (before != after).any(-1)
    expected = torch.zeros(3, 6, dtype=torch.bool)
    expected[1, 4] = True
    assert torch.equal(differs, expected)


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


@pytest.mark.parametrize(
    ("window", "sentence"),
    [
        (torch.zeros(2, 5, 3), r"needs a window \(2, D, L, 4\).*not \(2, 5, 3\)"),
        (torch.zeros(2, 5, 0, 4), r"at least 1, not \(2, 5, 0, 4\)"),
        (torch.zeros(3, 5, 2, 4), r"not \(3, 5, 2, 4\)"),
        (torch.zeros(2, 5, 2, 3), r"not \(2, 5, 2, 3\)"),
        (torch.zeros(2, 5, 2, 4, dtype=torch.float64), "float64 on cpu but the learner is"),
    ],
)
def test_wrong_windows_are_refused(window: Tensor, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        MambaLearner(2, 4)(window)


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="num_clients of at least 1, not 0"):
        MambaLearner(2, 0)
