"""The Mamba learner: its architecture against public Mambas, its initial values, its options."""

import math

import pytest
import torch
from torch import Tensor

from pfedseq.errors import InputError
from pfedseq.learners import MambaLearner
from pfedseq.learners.mamba import GATE_BIAS, SCAN_BIAS, MambaBlock
from tests.learners.reference import make_learner, make_window


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
        expected.append(residual[:, -1] - window[k, :, -1])  # without the residual stream's start
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
        expected.append(public(window[k])[:, -1] - window[k, :, -1])
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


def test_initial_values_of_a_signed_learner() -> None:
    """Its convolution passes on what it is given, its states fade at the rates 1/M to 1."""
    learner = MambaLearner(2, 6, signed=True)
    for block in learner.blocks:
        assert isinstance(block, MambaBlock)
        expected = (torch.arange(1, 17) / 16).expand(2, 12, 16)
        torch.testing.assert_close(block.A_log.exp(), expected)
        torch.testing.assert_close(block.weights().A, -expected)
        assert block.skip.eq(0).all()
        assert block.conv_weight[..., -1].eq(1).all()
        assert block.conv_weight[..., :-1].eq(0).all()
        assert block.conv_bias.eq(0).all()
        for name, value in (("gate_bias", GATE_BIAS), ("scan_bias", SCAN_BIAS)):
            assert block.get_parameter(name).eq(value).all(), name


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


def test_zero_projections_silence_every_block_and_can_leave_zero(path: str) -> None:
    options = {"zero_projections": True}
    generator = torch.Generator().manual_seed(0)
    learner = MambaLearner(2, 3, generator=generator, **options)
    window = make_window(2, 3, 5, 4)
    output = learner(window)
    assert output.eq(0).all()
    output.backward(torch.ones_like(output))
    for block in range(2):
        gradient = learner.get_parameter(f"blocks.{block}.out_proj").grad
        assert gradient is not None
        assert gradient.abs().min() > 0


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
