"""Runs of a language model: every method, equal engines, resumed runs, personal perplexities."""

import pytest
import torch

from pfedseq.config import load_config, make_config
from pfedseq.errors import InputError
from pfedseq.methods import METHODS
from pfedseq.runs.run import resume, run
from pfedseq.runs.world import World
from tests.model.tiny_language_models import STYLES, write_dialogues, write_language_model

NEED_CLASSES = {"fedrep", "fedrod", "pefll", "perada"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_language_model("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def dialogues(tmp_path_factory):
    return write_dialogues(tmp_path_factory.mktemp("data") / "talk")


@pytest.fixture
def config(folder, dialogues):
    def made(*methods, **sections):
        values = {
            "run": {"rounds": 2, **sections.pop("run", {})},
            "data": {"name": "dialogue", "source": str(dialogues), **sections.pop("data", {})},
            "model": {"backbone": folder},
            "adapter": {"rank": 2, "alpha": 4.0, "targets": ["query", "value", "mlp_out"]},
            "training": {"lr": 0.05, "batch_size": 4, **sections.pop("training", {})},
            "engine": {"device": "cpu", **sections.pop("engine", {})},
            **sections,
        }
        values["data"].setdefault("max_tokens", 24)
        values["run"]["methods"] = list(methods) or ["local"]
        return make_config(values)

    return made


def losses(summary, method):
    return summary.methods[method].scores.by_client(name="loss")


@pytest.mark.parametrize("name", [*METHODS])
def test_every_method_runs_or_says_why_not(name, config, tmp_path):
    if name in NEED_CLASSES:
        with pytest.raises(InputError, match=f"{name} needs classes and a head"):
            World.build(config(name))
        return
    methods = {"pfedseq": {"warmup_rounds": 1, "architecture": "linear"}}
    found = run(config(name, methods=methods), tmp_path / "out").methods[name].scores
    assert found.measure.name == "perplexity"
    assert set(found.test) == {"loss", "perplexity", "token_accuracy"}
    assert all(value > 1 for value in found.test["perplexity"])
    assert (tmp_path / "out" / "adapters" / name / "anna" / "adapter_config.json").exists()


def test_personal_adapters_lower_each_clients_perplexity(config, tmp_path):
    """The same prompts are answered differently: no common adapter can know how."""
    chosen = {"run": {"rounds": 4}, "training": {"lr": 1.0, "local_epochs": 3}}
    found = run(config("local", "fedavg", **chosen), tmp_path / "out").methods
    local, common = (found[name].scores.by_client() for name in ("local", "fedavg"))
    assert local.keys() == common.keys() == {0, 1, 2}
    assert all(local[i] < 0.8 * common[i] for i in local)


@pytest.mark.parametrize("layers", ["all", "last 1"])
def test_engines_groups_and_kept_tokens_agree(config, tmp_path, layers):
    adapter = {"rank": 2, "alpha": 4.0, "layers": layers}
    base = {"adapter": adapter, "data": {"store": str(tmp_path / "store")}}
    ways = [
        {"engine": {"clients_per_pass": 1}},
        {"engine": {"kind": "wire", "clients_per_pass": 1}},
        {"engine": {"clients_per_pass": 3}},
        {"engine": {"clients_per_pass": 1}, "model": {"tokens": "none"}},
    ]
    found = []
    for number, way in enumerate(ways):
        sections = {**base, "engine": way["engine"]}
        made = config("fedavg", **{k: dict(v) for k, v in sections.items()})
        tokens = made.model.model_copy(update=way.get("model", {}))
        made = made.model_copy(update={"model": tokens})
        found.append(losses(run(made, tmp_path / str(number)), "fedavg"))
    assert found[0] == found[1] == found[3]
    assert found[2] == pytest.approx(found[0], rel=1e-4)


def test_a_resumed_run_ends_with_the_same_numbers(config, tmp_path):
    made = config("pfedseq", run={"rounds": 3})

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(made, tmp_path / "cut", stop)
    heard = []
    again = resume(tmp_path / "cut", heard.append)
    assert [record.round for record in heard] == [2, 3]
    assert losses(again, "pfedseq") == losses(run(made, tmp_path / "whole"), "pfedseq")


def test_the_answers_alone_are_learnt(config):
    """The labels of a batch are the answers' tokens alone, in the order of the batch."""
    world = World.build(config())
    task = world.sites[0].task(1, "train")
    (batch,) = list(task.batches(1))[:1]
    inputs, labels = task.examples(batch)
    answered = inputs[..., 1] == 2
    assert int(answered.sum()) == len(labels)
    vocabulary = world.workload.encoder.tokenizer
    words = vocabulary.decode(labels)
    assert words.count("</s>") == len(batch)
    assert set(words.replace("</s>", " ").split()) >= set(STYLES["anna"].split())
    gradient = task.grad(task.initial, batch)
    assert gradient.head.shape == (0,)
    assert gradient.adapter.abs().sum() > 0
    head = task.grad(task.initial, batch, "head")
    assert torch.count_nonzero(head.adapter) == 0


def test_dialogues_that_are_cut_are_counted(config):
    assert not any("longer than" in note for note in World.build(config()).notes)
    told = World.build(config(data={"max_tokens": 10})).notes
    assert any("dialogues are longer than data.max_tokens = 10" in note for note in told)


def test_what_is_for_classes_is_refused(config):
    cases = [
        ({"run": {"headline": "accuracy"}}, "not defined for dialogues: choose among perplexity"),
        ({"training": {"class_weights": "balanced"}}, "need classes"),
        ({"training": {"augment": ["flip"]}}, "augment only applies to images"),
        ({"data": {"partition": "dirichlet"}}, "divides by classes"),
        ({"data": {"max_tokens": 100}}, "data.max_tokens = 100, but backbone .* reads 40"),
    ]
    for sections, said in cases:
        with pytest.raises(InputError, match=said):
            World.build(config(**sections))
    with pytest.raises(InputError, match="= 'perplexity' is not defined for images"):
        World.build(make_config({"run": {"headline": "perplexity"}}))


def test_the_headline_of_dialogues_is_perplexity(config, tmp_path):
    assert config().run.headline == "perplexity"
    assert config(run={"headline": "loss"}).run.headline == "loss"
    run(config(run={"rounds": 1}), tmp_path / "out")
    assert load_config(tmp_path / "out" / "config.toml").run.headline == "perplexity"


def test_dropout_is_drawn_by_the_seed(config, tmp_path):
    dropping = {"rank": 2, "alpha": 4.0, "dropout": 0.2}
    first, again = (
        losses(run(config("local", adapter=dropping), tmp_path / str(k)), "local") for k in "ab"
    )
    assert first == again
