"""`pfedseq export`: what others load, and what the card promises."""

import contextlib
import io
import json
import re
import shutil
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageClassification

from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.backbone import load_backbone
from pfedseq.runs.folder import RunFolder
from pfedseq.serving import export as export_module
from pfedseq.serving.card import model_card
from pfedseq.serving.client_models import ClientModels, Place
from pfedseq.serving.export import export_models
from tests.model.some_models import personal_model
from tests.model.whole_model import load_with_peft


@pytest.fixture(scope="module")
def exported(finished, tmp_path_factory):
    to = tmp_path_factory.mktemp("exported") / "here"
    models = ClientModels.open(finished)
    export_models(models, range(3), to, merge=True)
    return to


def pixels():
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(2))


def test_the_card_tells_how_to_load_it_with_transformers_and_peft(
    exported, finished, photos, command, tmp_path, monkeypatch
):
    """The card's own lines are run where the export was moved to."""
    moved = tmp_path / "elsewhere"
    shutil.copytree(exported, moved)
    monkeypatch.chdir(moved)
    photo = photos / "mill/whole/001.png"
    shutil.copy(photo, moved / "photo.png")
    card = (moved / "mill" / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, re.S)
    assert "pfedseq" not in code
    names = {}
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(code, names)
    _, out, _ = command("predict", finished, "--client", "mill", photo, "--json")
    (expected,) = json.loads(out)
    assert said.getvalue().strip() == expected["class"]
    shares = names["logits"].softmax(1)
    assert float(shares.max()) == pytest.approx(expected["probability"], abs=1e-5)


def test_the_card_holds_the_clients_own_figures(exported, finished):
    scores = RunFolder(finished).by_method()["pfedseq"][-1].scores
    for place, site in enumerate(("harbour", "mill", "quarry")):
        card = (exported / site / "README.md").read_text()
        assert f"| test accuracy | {100 * scores.test['accuracy'][place]:.2f} % |" in card
        assert f"| test loss | {scores.test['loss'][place]:.4f} |" in card
        assert "19 training, 5 validation, 8 test" in card
        assert "rank 3, alpha 16" in card
        assert "warmup_rounds = 1" in card
        assert "Look Back for More" in card
        assert str(finished) not in card, "no paths of this machine"


def test_all_share_one_backbone_by_a_relative_path(exported):
    assert sorted(entry.name for entry in exported.iterdir()) == [
        "backbone",
        "harbour",
        "mill",
        "quarry",
    ]
    config = json.loads((exported / "mill/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "../backbone"
    assert config["modules_to_save"] == ["classifier"]


def test_exported_models_predict_what_the_runs_do(exported, finished, command, photos):
    ours, theirs = ClientModels.open(finished), ClientModels.open(exported)
    assert theirs.names == ours.names
    assert theirs.method == "pfedseq"
    for index in range(3):
        torch.testing.assert_close(
            theirs.load(index).logits(pixels()), ours.load(index).logits(pixels())
        )
        with_peft = load_with_peft(exported / "backbone", theirs.places[index].folder, 2)
        with torch.no_grad():
            logits = with_peft(pixel_values=pixels()).logits
        torch.testing.assert_close(logits, ours.load(index).logits(pixels()), rtol=1e-4, atol=1e-4)
    photo = photos / "mill/whole/001.png"
    outputs = [
        command("predict", *place, photo, "--json")[1]
        for place in ((finished, "-c", "mill"), (exported, "-c", "mill"), (exported / "mill",))
    ]
    assert outputs[0] == outputs[1] == outputs[2]


def test_merged_checkpoints_are_whole(exported, finished):
    models = ClientModels.open(finished)
    merged = AutoModelForImageClassification.from_pretrained(exported / "quarry/merged").eval()
    with torch.no_grad():
        logits = merged(pixels()).logits
    torch.testing.assert_close(logits, models.load(2).logits(pixels()), rtol=1e-4, atol=1e-4)
    assert merged.config.id2label == {0: "cracked", 1: "whole"}


@pytest.mark.slow
def test_onnx_runs_to_the_same_classes(finished, photos, command, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra `onnx`")
    pytest.importorskip("onnxscript", reason="needs the extra `onnx`")
    code, out, err = command("export", finished, "-c", "mill", "--to", tmp_path, "--onnx")
    assert (code, out) == (0, f"{tmp_path / 'mill'}\n")
    assert "torchvision" not in err
    session = onnxruntime.InferenceSession(tmp_path / "mill/model.onnx")
    model = ClientModels.open(finished).load(1)
    files = sorted((photos / "mill").rglob("0[01]*.png"))
    for some in files[:5], files[5:6]:  # any number of images in a batch
        inputs = model.inputs([model.read((str(f), f.read_bytes())) for f in some])
        (logits,) = session.run(["logits"], {"pixel_values": inputs.numpy()})
        own = model.logits(inputs)
        assert logits.argmax(1).tolist() == own.argmax(1).tolist()
        torch.testing.assert_close(torch.from_numpy(logits), own, rtol=1e-3, atol=1e-3)


def test_onnx_without_its_packages_is_a_sentence(finished, command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = command("export", finished, "--all", "--to", tmp_path / "x", "--onnx")
    assert code == 2
    assert err == "pfedseq: --onnx needs more packages: pip install 'pfedseq[onnx]'\n"
    assert not (tmp_path / "x").exists()


def test_nothing_is_overwritten(exported, finished, command, tmp_path):
    to = tmp_path / "there"
    shutil.copytree(exported, to)
    shutil.rmtree(to / "mill")
    code, _, err = command("export", finished, "--all", "--to", to)
    assert code == 2
    assert "harbour already exists: delete it, or choose another --to" in err
    assert not (to / "mill").exists()
    assert command("export", finished, "--client", "mill", "--to", to)[0] == 0, "same backbone"
    shutil.rmtree(to / "mill")
    tensors = load_file(to / "backbone/model.safetensors")
    tensors["layernorm.bias"] += 1
    save_file(tensors, to / "backbone/model.safetensors", metadata={"format": "pt"})
    code, _, err = command("export", finished, "--client", "mill", "--to", to)
    assert code == 2
    assert "backbone contains a backbone that differs from this run's" in err
    assert not (to / "mill").exists()


def test_a_client_may_be_called_backbone(finished, tmp_path):
    models = ClientModels.open(finished)
    called = tmp_path / "source" / "Backbone"
    shutil.copytree(models.places[0].folder, called)
    odd = ClientModels(finished, "pfedseq", [Place("Backbone", called)])
    export_models(odd, [0], tmp_path / "to")
    assert sorted(entry.name for entry in (tmp_path / "to").iterdir()) == ["Backbone", "backbone_"]
    loaded = ClientModels.open(tmp_path / "to").load(0)
    torch.testing.assert_close(loaded.logits(pixels()), models.load(0).logits(pixels()))


def test_wrong_arguments_get_a_sentence(finished, command, tmp_path):
    for arguments, sentence in [
        ([finished], "choose the models to export: --client NAME, or --all"),
        ([finished, "--all", "-c", "mill"], "choose the models to export"),
        ([finished / "adapters/local/mill", "--all"], "is not a run: it has no config.toml"),
        ([finished, "-c", "bay"], "has no client 'bay'"),
    ]:
        code, _, err = command("export", *arguments, "--to", tmp_path / "x")
        assert code == 2
        assert sentence in err
    assert not (tmp_path / "x").exists()


@pytest.fixture
def published():
    """A model on a backbone that the hub has under this very name."""
    backbone = replace(load_backbone("demo"), name="google/vit-hub", as_published=True)
    model = AdaptedModel(backbone, AdapterConfig(), 15, seed=0)
    return personal_model(model, model.initial, tuple(f'it is "{n}"' for n in range(15)))


def test_a_backbone_of_the_hub_is_named_and_not_copied(published, finished, tmp_path, monkeypatch):
    monkeypatch.setattr(ClientModels, "load", lambda self, index: published)
    monkeypatch.setattr(export_module, "run_facts", lambda run, personal: {"a": "b|c"})
    models = ClientModels.open(finished)
    (folder,) = export_models(models, [1], tmp_path / "plain")
    assert [entry.name for entry in (tmp_path / "plain").iterdir()] == ["mill"]
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "google/vit-hub"
    card = (folder / "README.md").read_text()
    assert 'base_model: "google/vit-hub"' in card
    assert 'backbone = "google/vit-hub"' in card
    assert "| a | b\\|c |" in card
    export_models(models, [1], tmp_path / "whole", with_backbone=True)
    assert (tmp_path / "whole" / "backbone" / "model.safetensors").exists()


def test_a_card_with_many_classes_reads_their_names(published, tmp_path):
    card = model_card(published, "google/vit-hub", {}, "client_03")
    (code,) = re.findall(r"```python\n(.*?)```", card, re.S)
    published.save(tmp_path / "client_03")
    wanted = next(line for line in code.splitlines() if line.startswith("class_names"))
    names = {"json": json, "folder": tmp_path / "client_03"}
    exec(wanted, names)
    assert names["class_names"] == list(published.class_names)
    compile(code, "card", "exec")
    assert "15 classes" in card
