"""Texts from a CSV file to every use of the models: predict, evaluate, export, import, serve."""

import json
import runpy
import shutil

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer
from typer.testing import CliRunner

from pfedseq.cli import app
from pfedseq.config import load_config, make_config
from pfedseq.errors import InputError
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.run import run
from pfedseq.runs.world import World
from pfedseq.serving.client_models import ClientModels
from pfedseq.serving.together import ModelsTogether, load_together
from tests.model.tiny_text_models import WORDS, write_notes, write_text_model


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    return write_notes(tmp_path_factory.mktemp("notes") / "notes.csv")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_text_model("distilbert", tmp_path_factory.mktemp("distilbert"))


@pytest.fixture(scope="module")
def finished(notes, encoder, tmp_path_factory):
    config = make_config(
        {
            "run": {"methods": ["pfedseq", "fedavg"], "rounds": 3},
            "data": {"name": "text", "source": str(notes), "max_tokens": 12},
            "model": {"backbone": encoder, "pooling": "first"},
            "adapter": {"layers": "last 2", "rank": 2, "alpha": 4},
            "training": {"lr": 0.05, "batch_size": 4},
            "methods": {"pfedseq": {"warmup_rounds": 1, "architecture": "linear"}},
            "engine": {"device": "cpu", "clients_per_pass": 3},
        }
    )
    out = tmp_path_factory.mktemp("run") / "out"
    run(config, out)
    return out


@pytest.fixture
def command():
    def call(*arguments):
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    return call


def test_what_is_saved_says_how_texts_are_read(finished):
    about = json.loads((finished / "adapters/pfedseq/anna/personal_model.json").read_text())
    assert (about["unit"], about["max_tokens"], about["pooling"]) == ("text", 12, "first")
    assert about["class_names"] == sorted(WORDS)
    assert load_config(finished / "config.toml").model.pooling == "first"


def test_predict_takes_texts_files_and_folders(finished, command, tmp_path):
    (tmp_path / "letter.txt").write_text("soup salt bread")
    found = json.loads(
        command("predict", finished, "-c", "anna", "goal match so", tmp_path, "--json", "--top", 3)
    )
    assert [one["text"] for one in found] == ["goal match so", str(tmp_path / "letter.txt")]
    model = ClientModels.open(finished).load(0)
    for one, text in zip(found, ("goal match so", "soup salt bread"), strict=True):
        (shares,) = model.predict([model.read(("", text))])
        best = shares.sort(descending=True)
        assert [c["class"] for c in one["top"]] == [sorted(WORDS)[i] for i in best.indices]
        assert [c["probability"] for c in one["top"]] == pytest.approx(best.values.tolist())
    assert "goal match so: " in command("predict", finished, "-c", "anna", "goal match so")


@pytest.mark.parametrize(
    ("text", "said"), [("nowhere.txt", "there is no file nowhere.txt"), (" ", "has no text in it")]
)
def test_no_texts_are_refused(finished, text, said):
    result = CliRunner().invoke(app, ["predict", str(finished), "-c", "bob", text])
    assert result.exit_code != 0
    assert said in result.output + str(result.exception or "")


def test_evaluate_gives_what_the_run_has_reported(finished, command, notes):
    scores = RunFolder(finished).by_method()["pfedseq"][-1].scores
    found = json.loads(command("evaluate", finished, "--json"))
    assert [*found] == ["anna", "bob", "chen"]
    for place, one in enumerate(found.values()):
        assert one["accuracy"] == pytest.approx(scores.test["accuracy"][place])
        assert one["num_texts"] == sum(c["num_texts"] for c in one["classes"].values())
    on_all = json.loads(command("evaluate", finished, "-c", "bob", "--data", notes, "--json"))
    assert on_all["bob"]["num_texts"] == 60


def test_an_export_predicts_by_transformers_and_peft_alone(finished, command, tmp_path):
    command("export", finished, "--all", "--to", tmp_path / "out", "--merge")
    folder, text = tmp_path / "out" / "anna", "bread so moon"
    mine = ClientModels.open(finished).load(0)
    (wanted,) = mine.predict([mine.read(("", text))])
    backbone, head = tmp_path / "out" / "backbone", load_file(folder / "head.safetensors")
    tokens = AutoTokenizer.from_pretrained(backbone)(text, return_tensors="pt")
    plain = AutoModel.from_pretrained(backbone)
    for model in (
        PeftModel.from_pretrained(plain, folder),
        AutoModel.from_pretrained(folder / "merged"),
    ):
        with torch.no_grad():
            feature = model.eval()(**tokens).last_hidden_state[0, 0]
        shares = (head["weight"] @ feature + head["bias"]).softmax(0)
        torch.testing.assert_close(shares, wanted, rtol=1e-4, atol=1e-5)
    moved = json.loads(command("predict", folder, text, "--json", "--top", 3))
    assert moved[0]["probability"] == pytest.approx(float(wanted.max()), rel=1e-4)


def test_the_cards_code_runs(finished, command, tmp_path, capsys, monkeypatch):
    command("export", finished, "--client", "bob", "--to", tmp_path)
    card = (tmp_path / "bob" / "README.md").read_text()
    assert "pipeline_tag: text-classification" in card
    assert "DistilBERT" in card
    code = card.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "use.py").write_text(code)
    runpy.run_path(str(tmp_path / "use.py"))
    assert capsys.readouterr().out.splitlines()[-1] in WORDS


def test_random_weights_and_onnx_are_not_exported(finished, notes, tmp_path):
    result = CliRunner().invoke(
        app, ["export", str(finished), "--all", "--to", str(tmp_path / "o"), "--onnx"]
    )
    assert result.exit_code != 0
    values = {"name": "text", "source": str(notes), "max_tokens": 12}
    config = make_config(
        {
            "run": {"methods": ["local"], "rounds": 1},
            "data": values,
            "model": {"backbone": "random:bert-tiny"},
            "engine": {"device": "cpu"},
        }
    )
    run(config, tmp_path / "random")
    result = CliRunner().invoke(
        app, ["export", str(tmp_path / "random"), "--all", "--to", str(tmp_path / "p")]
    )
    assert result.exit_code != 0
    assert "no tokenizer" in result.output + str(result.exception or "")


def test_a_run_starts_from_a_clients_adapter(finished, command, notes, tmp_path):
    saved = finished / "adapters" / "pfedseq" / "chen"
    command("import", saved, finished / "config.toml", "--to", tmp_path / "mine.toml", "--head")
    config = load_config(tmp_path / "mine.toml")
    assert config.adapter.start == str(saved)
    initial = World.build(config).model.initial
    phi = ClientModels.open(finished).load(2).phi
    assert torch.equal(initial.adapter, phi.adapter)
    assert torch.equal(initial.head, phi.head)


def test_texts_for_several_clients_share_a_pass(finished):
    models, everyones, global_is = load_together(ClientModels.open(finished))
    assert global_is == "FedAvg's global model"
    together = ModelsTogether([*models, everyones])
    texts = ["goal", "soup so bread salt cheese", "star moon"]
    examples = [together.read("", text) for text in texts]
    shares = together.probabilities([2, 0, 3], examples)
    for row, number, example in zip(shares, (2, 0, 3), examples, strict=True):
        alone = together.models[number].predict([example])[0]
        torch.testing.assert_close(row, alone, rtol=1e-4, atol=1e-5)


def test_a_saved_model_of_an_unknown_kind_is_refused(finished, tmp_path):
    folder = tmp_path / "sound"
    shutil.copytree(finished / "adapters/pfedseq/anna", folder)
    about = json.loads((folder / "personal_model.json").read_text())
    for change, said in (
        ({"unit": "sound"}, "no workload for examples of the kind 'sound'"),
        ({"max_tokens": 0}, "texts of 0 tokens"),
        ({"pooling": "median"}, "unknown pooling 'median'"),
    ):
        (folder / "personal_model.json").write_text(json.dumps(about | change))
        with pytest.raises(InputError, match=said):
            ClientModels.open(folder).load(0)


@pytest.fixture
def service(finished):
    pytest.importorskip("fastapi", reason="the service needs the extra: pip install pfedseq[serve]")
    from fastapi.testclient import TestClient

    from pfedseq.serving.generations import Served
    from pfedseq.serving.service import Limits, make_service

    models, everyones, global_is = load_together(ClientModels.open(finished))
    names = ("anna", "bob", "chen")
    served = Served(ModelsTogether([*models, everyones]), names, "pfedseq", global_is)
    with TestClient(make_service(served, Limits(body_bytes=200))) as client:
        yield client, models


def test_the_service_takes_texts(service):
    client, models = service
    assert client.get("/clients").json()["unit"] == "text"
    (wanted,) = models[1].predict([models[1].read(("", "goal so"))])
    plain = {"content-type": "text/plain"}
    for body in ({"content": "goal so", "headers": plain}, {"json": {"text": "goal so"}}):
        answer = client.post("/predict?client=bob&compare=true", **body)
        assert answer.status_code == 200, answer.text
        best = answer.json()["prediction"][0]
        assert best["name"] == models[1].class_names[int(wanted.argmax())]
        assert best["probability"] == pytest.approx(float(wanted.max()), rel=1e-4)
    for body, status in (
        ({"content": " ", "headers": plain}, 400),
        ({"json": {"words": "goal"}}, 400),
        ({"content": b"\xff\xfe", "headers": plain}, 400),
        ({"content": b"x", "headers": {"content-type": "image/png"}}, 415),
        ({"content": "so " * 100, "headers": plain}, 413),
    ):
        refused = client.post("/predict?client=bob", **body)
        assert refused.status_code == status, refused.text
        assert refused.json()["detail"]
