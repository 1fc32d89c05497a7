"""Rates in the units of the model: one rate, whatever α, r and the length of features are."""

import pytest
import torch
from torch import nn

from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.backbone import load_backbone
from pfedseq.model.feature_length import feature_length
from pfedseq.training.config import LocalTraining, Units

SIZE = 32


def test_rates_are_divided_by_the_squares_of_the_units():
    """2 / 4² = 0.125 for adapters; 2 · (8 / 2) · √9 / 10² = 0.24 for heads."""
    units = Units(adapter=4.0, feature=10.0, classes=9)
    assert LocalTraining(lr=2, head_lr=8).rates(2, units) == (0.125, 0.24)
    assert LocalTraining(lr=2, head_lr=8, rate_units="plain").rates(2, units) == (2, 8)
    assert LocalTraining(lr=2, head_lr=8).rates(2) == (2, 8)


def test_a_step_changes_the_weight_alike_for_every_alpha():
    """LoRA's B starts at zero, so the first step changes α/r · B A by η/(α/r)² · (α/r)² · G AᵀA."""
    a, slope = torch.randn(3, 5), torch.randn(4, 5)  # A (r, in), ∂L/∂W (out, in)

    def change(scale: float) -> torch.Tensor:
        rate, _ = LocalTraining(lr=0.5).rates(0.5, Units(adapter=scale))
        b = -rate * scale * slope @ a.mT  # ∂L/∂B = α/r · ∂L/∂W Aᵀ
        return scale * b @ a

    torch.testing.assert_close(change(1.0), change(8.0))


def test_a_step_on_the_head_moves_the_logits_alike_for_every_length():
    """Of one example with features f: η/|f|² · (y − p) |f|²."""
    error = torch.tensor([0.7, -0.7])
    moves = []
    for length in (1.0, 58.0):
        f = nn.functional.normalize(torch.randn(6), dim=0) * length
        _, rate = LocalTraining(lr=1, head_lr=3).rates(1, Units(feature=length))
        moves.append((rate * torch.outer(error, f)) @ f)
    torch.testing.assert_close(*moves)
    torch.testing.assert_close(moves[0], 3 * error)


def test_the_length_of_features_is_known_without_looking_at_data():
    """γ = (3, 0), β = (0, 4): √(9 + 16) = 5; the last norm counts."""
    norm = nn.LayerNorm(2)
    norm.weight.data, norm.bias.data = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    assert feature_length(nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 2), norm)) == 5.0
    assert feature_length(nn.Linear(2, 2)) == 1.0
    rms = nn.RMSNorm(2)
    rms.weight.data = torch.tensor([3.0, 4.0])
    assert feature_length(nn.Sequential(norm, rms)) == 5.0


def test_the_demo_backbones_features_have_about_that_length():
    model = AdaptedModel(load_backbone("demo", SIZE, None, None), AdapterConfig(), 3, seed=0)
    images = torch.rand(16, 3, SIZE, SIZE) * 2 - 1
    lengths = model.features(model.initial.adapter, model.inputs(images)).norm(dim=1)
    assert float(lengths.mean()) == pytest.approx(model.units.feature, rel=0.15)
    assert model.units.classes == 3
    assert model.units.adapter == AdapterConfig().alpha / AdapterConfig().rank
