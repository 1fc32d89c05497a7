"""`pfedseq doctor` tells what a machine has, and notices when two ways to compute disagree."""

import re
from types import SimpleNamespace

import pytest
import torch
import typer

from pfedseq.cli import doctor as module
from pfedseq.cli.doctor import doctor
from pfedseq.learners import fused_mamba


def test_a_healthy_machine(capsys):
    doctor(device="cpu")
    out = capsys.readouterr().out
    assert re.search(r"^torch: +\d", out, re.M)
    assert re.search(r"^device: +cpu$", out, re.M)
    assert "they agree" in out
    assert re.search(r"one round +\d+\.\d\d s on the CPU", out)
    assert "PFEDSEQ_MAMBA_KERNEL" not in out, "the kernel is off for the comparison alone"


def results(monkeypatch, found):
    """Let the self-test find these parameters on the CPU and on the device; where it looked."""
    looked = []

    def short_run(device):
        looked.append(device)
        return torch.tensor(found[len(looked) - 1], dtype=torch.float64), 0.25

    monkeypatch.setattr(module, "_short_run", short_run)
    return looked


@pytest.mark.parametrize("second", [[2.0, -3.0 + 1e-2], [2.0, float("nan")]])
def test_a_difference_is_told_and_ends_with_1(monkeypatch, capsys, second):
    results(monkeypatch, [[2.0, -3.0], second])
    with pytest.raises(typer.Exit) as stop:
        doctor(device="cpu")
    assert stop.value.exit_code == 1
    assert "TOO LARGE" in capsys.readouterr().out


def test_rounding_is_no_difference(monkeypatch, capsys):
    results(monkeypatch, [[2.0, -3.0], [2.0, -3.0 + 3e-5]])
    doctor(device="cpu")
    assert "1.0e-05 of the largest parameter: they agree" in capsys.readouterr().out


def test_a_card_is_described_and_compared_with_the_processor(monkeypatch, capsys):
    card = SimpleNamespace(name="Card 9000", total_memory=8 * 2**30, major=9, minor=1)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: card)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)
    looked = results(monkeypatch, [[1.0], [1.0]])
    doctor(device="cuda:1")
    assert looked == ["cpu", "cuda:1"]
    told = "Card 9000, 8.0 GiB, compute capability 9.1, bfloat16: yes"
    assert re.search(rf"^cuda:1: +{re.escape(told)}$", capsys.readouterr().out, re.M)


def test_tokens_are_not_shown(monkeypatch, capsys):
    monkeypatch.setenv("PFEDSEQ_TOKEN", "secret")
    monkeypatch.setenv("PFEDSEQ_CACHE", "somewhere")
    doctor(device="cpu", test=False)
    out = capsys.readouterr().out
    assert "secret" not in out
    assert "PFEDSEQ_CACHE=somewhere" in out


def test_the_kernel_comes_back_after_the_comparison(monkeypatch):
    monkeypatch.setenv("PFEDSEQ_MAMBA_KERNEL", "baseline")
    fused_mamba.fused_mamba.cache_clear()
    with module._without_kernel():
        assert fused_mamba.fused_mamba() is None
    kernel = fused_mamba.fused_mamba()
    fused_mamba.fused_mamba.cache_clear()
    assert kernel is None or kernel.variant == "baseline"
