"""The configs that ship with the project: all valid, and the paper's say what the paper says."""

from pathlib import Path

import pytest

from pfedseq.config import load_config
from pfedseq.methods import METHODS

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
PAPER = {  # data set: (local rate, L, Per-FedAvg's and pFedMe's rate, hypernetworks' rate)
    "cifar100": (0.005, 20, 0.005, 0.001),
    "tiny_imagenet": (0.005, 20, 0.005, 0.001),
    "domainnet": (0.005, 10, 0.01, 0.001),
    "omniglot": (0.05, 10, 0.01, 0.0005),
}


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.toml")), ids=lambda path: path.stem)
def test_a_config_is_valid_for_every_method(path):
    config = load_config(path)
    assert config.advice() == []
    for name in METHODS:
        config.method_config(name)
    opening = "".join(path.read_text(encoding="utf-8").splitlines()[:2])
    assert f"configs/{path.relative_to(CONFIGS)}" in opening, "it begins with how to run it"


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_values(name):
    """Experimental Setup and Appendix B."""
    lr, length, meta_lr, hypernet_lr = PAPER[name]
    config = load_config(CONFIGS / f"{name}.toml")
    assert (config.run.rounds, config.data.image_size) == (80, 224)
    assert (config.training.lr, config.training.batch_size) == (lr, 32)
    assert config.training.local_epochs == 1
    assert config.model.backbone == "google/vit-base-patch16-224-in21k"
    learner = config.method_config("pfedseq")
    assert (learner.warmup_rounds, learner.max_sequence_length) == (10, length)
    assert (learner.state_dim, learner.num_blocks, learner.learner_lr) == (16, 2, 0.001)
    for method in ("per_fedavg", "pfedme"):
        assert config.method_config(method).lr == meta_lr
    for method in ("pfedhn", "pfedla", "pefll"):
        assert config.method_config(method).hypernet_lr == hypernet_lr


def test_the_lab_has_a_scenario_for_each_of_the_papers():
    lab = {path.stem for path in (CONFIGS / "lab").glob("*.toml")}
    assert lab == set(PAPER) - {"domainnet"} | {"pacs"}
