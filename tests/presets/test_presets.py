"""The configs that ship with the package: all valid, and the paper's say what the paper says."""

import pytest

from pfedseq.config import load_config
from pfedseq.errors import InputError
from pfedseq.methods import METHODS
from pfedseq.methods.pfedseq import PFedSeqConfig
from pfedseq.presets import find_config, preset_names, preset_summary

PAPER = {  # data set: (local rate, L, Per-FedAvg's and pFedMe's rate, hypernetworks' rate)
    "cifar100": (0.005, 20, 0.005, 0.001),
    "tiny_imagenet": (0.005, 20, 0.005, 0.001),
    "domainnet": (0.005, 10, 0.01, 0.001),
    "omniglot": (0.05, 10, 0.01, 0.0005),
}


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_is_valid_for_every_method(preset):
    config = load_config(preset)
    assert config.advice() == []
    for name in METHODS:
        config.method_config(name)
    opening = find_config(preset).read_text(encoding="utf-8").splitlines()[:2]
    commands = [line.split()[2:4] for line in opening]
    assert ["run", preset] in commands or ["compare", preset] in commands, "how to run it"
    summary = preset_summary(preset)
    assert summary.endswith(".")
    assert "pfedseq" not in summary


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_values(name):
    """Experimental Setup and Appendix B."""
    lr, length, meta_lr, hypernet_lr = PAPER[name]
    config = load_config(name)
    assert (config.run.rounds, config.data.image_size) == (80, 224)
    assert (config.training.lr, config.training.batch_size) == (lr, 32)
    assert config.training.local_epochs == 1
    assert config.model.backbone == "google/vit-base-patch16-224-in21k"
    learner = config.method_config("pfedseq")
    assert (learner.warmup_rounds, learner.max_sequence_length) == (10, length)
    assert (learner.architecture, learner.state_dim, learner.num_blocks) == ("mamba", 16, 2)
    assert (config.training.head_lr, config.training.rate_units) == (lr, "plain")
    assert (config.training.head, config.adapter.scale) == ("private", 1)
    assert learner.history_clip == 0
    assert config.method_config("per_fedavg").lr == meta_lr
    assert config.method_config("pfedme").outer_lr == meta_lr
    for method in ("pfedhn", "pfedla", "pefll"):
        assert config.method_config(method).hypernet_lr == hypernet_lr


def test_the_papers_presets_run_the_default_learner_and_literal_the_plain_reading():
    """Every option of the learner is written out, so a changed default is noticed here."""
    default = PFedSeqConfig(gain=30)  # the default of 100 is for a user's own data
    open_to_us = ("learner_lr", "gain", "signed", "zero_projections", "residual", "scale")
    for name in PAPER:
        learner = load_config(name).method_config("pfedseq")
        assert [getattr(learner, option) for option in open_to_us] == [
            getattr(default, option) for option in open_to_us
        ]
        assert learner.forgetting == pytest.approx(default.forgetting, abs=1e-3)
    literal = load_config("literal").method_config("pfedseq")
    assert [getattr(literal, option) for option in open_to_us] == [
        *(0.001, 1.0, False, False, "newest", "none")
    ]
    assert literal.forgetting == 0


def test_the_lab_has_a_scenario_for_each_of_the_papers():
    lab = {name.removeprefix("lab/") for name in preset_names() if name.startswith("lab/")}
    assert lab >= set(PAPER) - {"domainnet"} | {"pacs"}


def test_a_file_wins_over_a_preset_and_a_folder_does_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    assert load_config("demo").data.name == "digits"
    (tmp_path / "mine.toml").write_text("[run]\nrounds = 7\n")
    assert load_config("mine.toml").run.rounds == 7
    (tmp_path / "omniglot").write_text("[run]\nrounds = 9\n")
    assert load_config("omniglot").run.rounds == 9


def test_a_misspelt_preset_is_answered_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'lab/pacs'"):
        load_config("lab/pacts")
    with pytest.raises(InputError, match="pfedseq presets"):
        load_config("xyzzy")
