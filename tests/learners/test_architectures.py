"""What all three architectures promise, and what is particular to the LSTM and the MLP."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pfedseq.errors import InputError
from pfedseq.federation import Setup
from pfedseq.learners import LinearLearner, LSTMLearner, MambaLearner, MLPLearner, layerwise
from pfedseq.learners.calibration import CalibrationLearner, LearnerConfig
from pfedseq.params import Params

K, N, D, L = 2, 3, 7, 5

Make = Callable[..., nn.Module]


def make_signed(num_layers: int, num_clients: int, **options: bool) -> MambaLearner:
    return MambaLearner(num_layers, num_clients, signed=True, **options)


def make_mlp(num_layers: int, num_clients: int, **options: bool) -> MLPLearner:
    return MLPLearner(num_layers, num_clients, L, **options)


every_architecture = pytest.mark.parametrize(
    "make", [MambaLearner, make_signed, LSTMLearner, make_mlp]
)


def make_window(steps: int = L, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(steps, N, K, D, generator=generator).permute(2, 3, 0, 1)


@every_architecture
@pytest.mark.parametrize("steps", [1, 3, L])
def test_any_length_gives_one_calibration_per_client(make: Make, steps: int) -> None:
    output = make(K, N)(make_window(steps))
    assert output.shape == (K, D, N)
    assert output.isfinite().all()


@every_architecture
def test_every_parameter_learns(make: Make) -> None:
    torch.manual_seed(0)
    learner = make(K, N)
    learner(make_window()).backward(torch.ones(K, D, N))
    for name, parameter in learner.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("architecture", ["mamba", "lstm", "mlp"])
def test_the_runs_seed_decides_the_initial_values(architecture: str) -> None:
    def initial(seed: int) -> Tensor:
        setup = Setup(Params(torch.zeros(K, D), torch.zeros(1)), (1,) * N, 9, seed)
        config = LearnerConfig.model_validate(
            {"architecture": architecture, "zero_projections": False}
        )
        learner = CalibrationLearner(config, setup)
        return torch.cat([parameter.detach().flatten() for parameter in learner.parameters()])

    first = initial(0)
    torch.manual_seed(1)  # it is not PyTorch's own
    assert torch.equal(initial(0), first)
    assert not torch.equal(initial(1), first)


@every_architecture
def test_projections_at_zero_are_silent(make: Make) -> None:
    assert make(K, N, zero_projections=True)(make_window()).eq(0).all()


@every_architecture
def test_layers_and_rows_are_independent_and_steps_are_not(make: Make) -> None:
    torch.manual_seed(0)
    learner = make(K, N)
    window = make_window()
    before = learner(window)
    for step in range(L):
        changed = window.clone()
        changed[1, 4, step, 0] += 1
        differs = learner(changed) != before
        assert differs[1, 4].all(), f"step {step} of one client reaches every client's output"
        differs[1, 4] = False
        assert not differs.any()


@every_architecture
def test_chunks_change_neither_value_nor_gradients(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for graph_bytes in (2**27, 1):  # everything at once, row by row
        monkeypatch.setattr(layerwise, "_GRAPH_BYTES", graph_bytes)
        torch.manual_seed(0)
        learner = make(K, N).double()
        output = learner(make_window().double())
        output.backward(torch.ones_like(output))
        results.append([output, *(parameter.grad for parameter in learner.parameters())])
    for whole, by_rows in zip(*results, strict=True):
        torch.testing.assert_close(whole, by_rows, rtol=1e-12, atol=1e-12)


@every_architecture
def test_global_seed_decides_the_initial_values(make: Make) -> None:
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(make(K, N)(make_window()))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


@every_architecture
def test_wrong_windows_and_sizes_are_refused(make: Make) -> None:
    with pytest.raises(InputError, match=r"Learner needs a window \(2, D, L, 3\)"):
        make(K, N)(torch.zeros(K, D, L, N + 1))
    with pytest.raises(InputError, match="needs num_layers of at least 1, not 0"):
        make(0, N)


WRONG_WINDOWS = {
    "other layers": (K + 1, D, L, N),
    "other clients": (K, D, L, N + 1),
    "no rows": (K, 0, L, N),
    "no steps": (K, D, 0, N),
    "three axes": (K, D, N),
}


@pytest.mark.parametrize("shape", WRONG_WINDOWS.values(), ids=WRONG_WINDOWS)
def test_a_window_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=rf"LinearLearner needs a window \({K}, D, L, {N}\)"):
        LinearLearner(K, N)(torch.zeros(shape))


def test_a_window_of_another_dtype_is_refused() -> None:
    with pytest.raises(InputError, match=r"the window is torch\.float64 .* is torch\.float32"):
        LinearLearner(K, N)(make_window().double())


SIZES = {
    LinearLearner: ("num_layers", "num_clients"),
    LSTMLearner: ("num_layers", "num_clients", "num_blocks", "expand"),
    MLPLearner: ("num_layers", "num_clients", "max_sequence_length", "hidden"),
    MambaLearner: (
        *("num_layers", "num_clients", "num_blocks", "expand"),
        *("state_dim", "conv_width"),
    ),
}


@pytest.mark.parametrize(
    ("learner", "name"), [(learner, name) for learner, names in SIZES.items() for name in names]
)
def test_every_size_is_at_least_one(learner: Make, name: str) -> None:
    sizes = dict.fromkeys(SIZES[learner], 1)
    learner(**sizes)
    with pytest.raises(InputError, match=f"Learner needs {name} of at least 1, not 0"):
        learner(**sizes | {name: 0})


def test_lstm_is_a_recurrence_over_steps() -> None:
    """One cell, written out: i, f, g, o gates in PyTorch's order."""
    torch.manual_seed(0)
    learner = LSTMLearner(1, N, num_blocks=1).double()
    window = make_window().double()[:1]
    cell = learner.recurrent[0]
    assert isinstance(cell, nn.LSTM)
    h = c = torch.zeros(D, 2 * N, dtype=torch.float64)
    for j in range(L):
        gates = window[0, :, j] @ cell.weight_ih_l0.T + h @ cell.weight_hh_l0.T
        i, f, g, o = (gates + cell.bias_ih_l0 + cell.bias_hh_l0).chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    torch.testing.assert_close(learner(window)[0], learner.projections[0](h))


def test_mlp_reads_short_windows_as_if_zeros_came_before() -> None:
    torch.manual_seed(0)
    learner = MLPLearner(K, N, L)
    short = make_window(2)
    padded = torch.cat([torch.zeros(K, D, L - 2, N), short], dim=2)
    behind = torch.cat([short, torch.zeros(K, D, L - 2, N)], dim=2)
    assert torch.equal(learner(short), learner(padded))
    assert not torch.equal(learner(short), learner(behind))


def test_mlp_by_hand() -> None:
    """Four fully connected layers of 100 hidden units over the concatenated steps."""
    torch.manual_seed(0)
    learner = MLPLearner(1, N, L).double()
    window = make_window().double()[:1]
    network = learner.networks[0]
    assert isinstance(network, nn.Sequential)
    x = torch.cat([window[0, :, j] for j in range(L)], dim=1)  # oldest step first
    weights = [layer for layer in network if isinstance(layer, nn.Linear)]
    assert [layer.out_features for layer in weights] == [100, 100, 100, N]
    for layer in weights[:-1]:
        x = (x @ layer.weight.T + layer.bias).clamp(min=0)
    torch.testing.assert_close(learner(window)[0], x @ weights[-1].weight.T + weights[-1].bias)


def test_mlp_refuses_longer_windows() -> None:
    with pytest.raises(InputError, match=f"at most {L} steps, not {L + 1}"):
        MLPLearner(K, N, L)(make_window(L + 1))


def test_linear_by_hand() -> None:
    """Two steps of two clients: s = (Δ^1 + Δ^2) / √2 and ξ = s W, W (from, to)."""
    learner = LinearLearner(1, 2)
    assert learner(torch.ones(1, 1, 2, 2)).eq(0).all(), "it starts at zero"
    with torch.no_grad():
        learner.weight.copy_(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]))
    window = torch.tensor([[[[1.0, 2.0], [5.0, 4.0]]]])  # sums (6, 6)
    torch.testing.assert_close(learner(window) * 2**0.5, torch.tensor([[[24.0, 36.0]]]))
