"""Pretraining learns, is a function of its settings, and saves what can be loaded."""

import json
import math
from pathlib import Path

import pytest
import torch
from pretraining.__main__ import save
from pretraining.training import (
    PretrainingSettings,
    Progress,
    _rate,
    _variation,
    class_token,
    new_model,
    pretrain,
)

from pfedseq.model.backbone import load_backbone

TINY = PretrainingSettings(steps=90, batch_size=32, warmup_steps=5, width=32, depth=1, heads=2)


def run(settings: PretrainingSettings) -> tuple[dict[str, torch.Tensor], list[Progress]]:
    reports: list[Progress] = []
    model = pretrain(settings, reports.append, report_every=30)
    return model.state_dict(), reports


def test_loss_falls_and_progress_is_reported() -> None:
    _, reports = run(TINY)
    assert [report.step for report in reports] == [30, 60, 90]
    assert reports[0].loss > reports[-1].loss
    assert reports[-1].loss < math.log(384) - 0.02  # better than chance
    assert "step    90/90" in str(reports[-1])


def test_weights_are_a_function_of_the_seed() -> None:
    settings = PretrainingSettings(**{**TINY.__dict__, "steps": 3})
    first, again = run(settings)[0], run(settings)[0]
    other = run(PretrainingSettings(**{**settings.__dict__, "seed": 1}))[0]
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["layers.0.mlp.fc1.weight"], other["layers.0.mlp.fc1.weight"])


def test_schedules() -> None:
    settings = PretrainingSettings(steps=100, warmup_steps=10)
    assert _rate(0, settings) == pytest.approx(0.1)
    assert _rate(9, settings) == _rate(10, settings) == 1
    assert _rate(55, settings) == pytest.approx(0.5)
    assert _rate(100, settings) == pytest.approx(0)
    assert _variation(0, settings) == pytest.approx(0.2)
    assert _variation(25, settings) == pytest.approx(0.6)
    assert _variation(50, settings) == _variation(100, settings) == 1


def test_saved_folder_loads_as_the_same_network(tmp_path: Path) -> None:
    model = new_model(TINY).eval()
    folder = tmp_path / "vit"
    folder.mkdir()
    save(model, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["vit"]
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    assert processor["image_mean"] == [0.5, 0.5, 0.5]
    backbone = load_backbone(str(folder))
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        expected = class_token(model, images)
        normalised = (images - torch.tensor(backbone.mean).view(3, 1, 1)) / 0.5
        actual = backbone.model(pixel_values=normalised).last_hidden_state[:, 0]
    torch.testing.assert_close(actual, expected)
