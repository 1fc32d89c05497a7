"""What a run's numbers depend on, and how a change is named."""

from types import SimpleNamespace

import torch

from pfedseq.config import make_config
from pfedseq.runs import identity
from pfedseq.runs.identity import config_values, difference, digest, options_made_with

CPU = torch.device("cpu")


def made(method="fedavg", *overrides):
    config = make_config({"run": {"methods": ["fedavg", "pfedseq"]}}, overrides)
    return options_made_with(config, method, CPU)


def test_the_kernel_counts_where_it_computes(monkeypatch):
    kernel = SimpleNamespace(variant="avx9")
    monkeypatch.setattr(identity, "fused_mamba", lambda: kernel)
    assert made("pfedseq")["kernel"] == "avx9"
    assert made("fedavg")["kernel"] == "plain PyTorch"
    monkeypatch.setattr(identity, "fused_mamba", lambda: None)
    assert made("pfedseq")["kernel"] == "plain PyTorch"


def test_the_versions_and_the_kind_of_device_count():
    values = made()
    assert values["version of torch"] == torch.__version__
    assert values["version of pfedseq"]
    assert values["device"] == "cpu"
    config = make_config({})
    assert options_made_with(config, "local", torch.device("cuda", 1))["device"] == "cuda"


def test_an_option_counts_unless_it_has_no_effect_on_this_method():
    now = made()
    for same in (
        "run.name=other",
        "engine.threads=3",
        "engine.clients_per_pass=2",
        "run.methods=['fedavg']",
    ):
        assert made("fedavg", same) == now
    assert made("fedavg", "methods.pfedseq.warmup_rounds=3") == now
    assert made("pfedseq", "methods.pfedseq.warmup_rounds=3") != made("pfedseq")
    changed = made("fedavg", "methods.fedavg.lr=0.5")
    assert difference(now, changed).startswith("config key methods.fedavg.lr was ")
    rounded = made("fedavg", "federation.payload=int8")
    assert difference(now, rounded) == "config key federation.payload was float32, is int8"


def test_the_first_difference_by_name_is_told():
    assert difference({"a": 1, "b": [2]}, {"b": [2], "a": 1}) is None
    assert difference({"b": 1, "a": 1}, {"b": 2, "a": 3}) == "a was 1, is 3"
    assert difference({"a": 1}, {}) == "a was 1, is not set"


def test_a_digest_is_of_its_value():
    assert digest([{"name": "a", "train": [1, 2]}]) == digest([{"name": "a", "train": [1, 2]}])
    assert digest([{"name": "a", "train": [1, 2]}]) != digest([{"name": "a", "train": [2, 1]}])


def test_options_have_dotted_names():
    values = config_values(make_config({"run": {"rounds": 7}}))
    assert values["run.rounds"] == 7
    assert values["data.name"] == make_config({}).data.name
    assert "run" not in values
    assert None not in values.values()
