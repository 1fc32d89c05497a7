"""`pfedseq predict` and `evaluate` on a run's models."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy

from pfedseq.errors import InputError
from pfedseq.methods import METHODS
from pfedseq.model.backbone import load_backbone
from pfedseq.runs.folder import RunFolder
from pfedseq.serving.client_models import ClientModels
from pfedseq.serving.evaluation import OwnTestData, evaluate_on
from pfedseq.serving.prediction import most_likely, predict_files
from pfedseq.workloads.images.kind import LabelledImages, find_images
from pfedseq.workloads.images.published import write_backbone
from tests.model.whole_model import load_with_peft


@pytest.fixture(scope="module")
def own_test_images(finished):
    return OwnTestData(finished)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "vit"
    write_backbone(load_backbone("demo"), folder)
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_transformers_and_peft_alone_score_what_the_run_has_reported(
    method, finished, own_test_images, base
):
    """Every method's models, every client: accuracy and loss on the client's own test images."""
    scores = RunFolder(finished).by_method()[method][-1].scores
    models = ClientModels.open(finished, method)
    assert models.names == ["harbour", "mill", "quarry"]
    images = own_test_images.data.examples
    for index, client in enumerate(own_test_images.data.clients):
        theirs = load_with_peft(base, models.places[index].folder, 2)
        pixels = (torch.from_numpy(images.images[client.test]) / 255 - 0.5) / 0.5
        labels = torch.from_numpy(images.labels[client.test])
        with torch.no_grad():
            logits = theirs(pixel_values=pixels).logits
        torch.testing.assert_close(logits, models.load(index).logits(pixels), rtol=1e-4, atol=1e-4)
        assert float(cross_entropy(logits, labels)) == pytest.approx(
            scores.test["loss"][index], rel=1e-4, abs=1e-5
        )
        own = own_test_images.evaluate(models.load(index), client.name)
        assert own.measures["accuracy"] == scores.test["accuracy"][index]
        assert own.measures["loss"] == pytest.approx(scores.test["loss"][index], rel=1e-5)


def test_predict_names_the_class_of_each_image(command, finished, photos):
    files = [photos / "mill/whole/001.png", photos / "quarry/cracked/002.png"]
    code, out, _ = command("predict", finished, "--client", "mill", *files, "--top", 2)
    assert code == 0
    lines = out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [str(file) for file in files]
    assert all({"cracked", "whole"} == {*line.split(": ")[1].split()[::3]} for line in lines)

    code, out, _ = command("predict", finished, "-c", "1", *files, "--json", "-m", "local")
    found = json.loads(out)
    assert [one["image"] for one in found] == [str(file) for file in files]
    assert {one["client"] for one in found} == {"mill"}
    assert {one["method"] for one in found} == {"local"}
    models = ClientModels.open(finished, "local")
    model = models.load(1)
    shares = model.predict([model.read((str(f), f.read_bytes())) for f in files])
    for one, share in zip(found, shares, strict=True):
        assert one["class"] == ("cracked", "whole")[int(share.argmax())]
        assert one["probability"] == pytest.approx(float(share.max()), abs=1e-6)
        assert one["top"] == [{"class": one["class"], "probability": one["probability"]}]


def test_clients_have_models_of_their_own(finished, photos):
    models = ClientModels.open(finished, "local")
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    mill, quarry = (models.load(models.find(name)) for name in ("mill", "quarry"))
    assert mill.model is quarry.model, "one backbone for all"
    assert not torch.allclose(mill.logits(pixels), quarry.logits(pixels), atol=1e-3)
    assert models.find("2") == 2
    assert ClientModels.open(finished).method == "pfedseq", "the run's first method"


def test_folders_and_patterns_stand_for_their_images(photos, tmp_path):
    inside = find_images([str(photos / "mill")])
    assert len(inside) == 33
    assert inside == sorted(inside)
    assert find_images([str(photos / "*/whole/00[01].png")]) == sorted(
        photos / site / "whole" / f"00{n}.png"
        for site in ("harbour", "mill", "quarry")
        for n in (0, 1)
    )
    with pytest.raises(InputError, match=r"there is no image .*nothing\.png"):
        find_images([str(tmp_path / "nothing.png")])
    with pytest.raises(InputError, match="contains no images"):
        find_images([str(tmp_path)])


def test_what_cannot_be_read_is_named_and_the_others_are_predicted(command, finished, photos):
    good, bad = photos / "mill/whole/000.png", photos / "mill/whole/099.png"
    code, out, err = command("predict", finished, "-c", "mill", good, bad)
    assert code == 2
    assert out.startswith(f"{good}: ")
    assert len(out.splitlines()) == 1
    assert err.splitlines() == [
        f"pfedseq: {bad} is not a readable image (Pillow does not recognise its image format)"
    ]


def test_a_missing_file_keeps_nobody_from_the_others(command, finished, photos):
    good, gone = photos / "mill/whole/000.png", photos / "mill/whole/none.png"
    code, out, err = command("predict", finished, "-c", "mill", gone, good)
    assert code == 2
    assert out.startswith(f"{good}: ")
    assert err.splitlines() == [f"pfedseq: there is no image {gone}"]


def test_evaluating_on_deeper_folders_names_the_option_that_there_is(command, finished, photos):
    code, _, err = command("evaluate", finished, "--data", photos)
    assert code == 2
    assert "--data must be a folder with one folder for each class" in err
    assert "data.layout" not in err


def test_many_images_come_in_their_order(finished, photos, monkeypatch):
    monkeypatch.setattr("pfedseq.serving.prediction.PREDICTION_BATCH", 4)
    model = ClientModels.open(finished, "local").load(1)
    files = find_images([str(photos / "mill/whole"), str(photos / "mill/cracked")])
    reported = []
    found = list(predict_files(model, files, report=lambda *args: reported.append(args)))
    assert [type(one).__name__ for one in found].count("InputError") == 1
    for file, one in zip(files, found, strict=True):
        if file.name == "099.png":
            assert isinstance(one, InputError)
        else:
            assert one.example == str(file)
            (alone,) = predict_files(model, [file])
            assert alone.classes == one.classes
            assert alone.probabilities == pytest.approx(one.probabilities, abs=1e-5)
    assert reported[-1] == ("predicting", 33, 33)


def test_the_likeliest_come_first():
    shares = torch.tensor([0.1, 0.6, 0.3])
    one = most_likely("x.png", shares, ("a", "b", "c"), 2)
    assert one.classes == ("b", "c")
    assert one.probabilities == pytest.approx((0.6, 0.3))
    assert most_likely("x.png", shares, ("a", "b", "c"), 9).classes == ("b", "c", "a")


def test_evaluate_counts_what_is_taken_for_what(finished, photos, tmp_path):
    """Counted by hand from single predictions; only one of the two classes has images."""
    model = ClientModels.open(finished, "local").load(0)
    folder = tmp_path / "data" / "whole"
    folder.mkdir(parents=True)
    shades = np.random.default_rng(0).integers(0, 256, (9, 20, 20), dtype=np.uint8)
    for number, pixels in enumerate(shades):
        Image.fromarray(pixels).save(folder / f"{number}.png")
    result = evaluate_on(model, LabelledImages(tmp_path / "data"))
    found = [one.classes[0] for one in predict_files(model, sorted(folder.iterdir()))]
    whole = model.class_names.index("whole")
    assert result.num_examples == 9
    assert result.measures["accuracy"] == found.count("whole") / 9
    assert result.confusion[whole].tolist() == [found.count(n) for n in model.class_names]
    assert result.confusion[1 - whole].sum() == 0
    described = result.to_json()["classes"]
    assert list(described) == ["whole"]
    assert described["whole"]["num_images"] == 9
    assert sum(described["whole"]["taken_for"].values()) == 9


def test_evaluate_prints_tables_and_json(command, finished, photos):
    code, out, _ = command("evaluate", finished, "--client", "mill", "--data", photos / "quarry")
    assert code == 0
    assert "Recall in % of each class" in out
    assert " mill " in out
    code, out, _ = command("evaluate", finished, "-m", "fedavg")
    assert code == 0
    assert all(f" {site} " in out for site in ("harbour", "mill", "quarry"))
    code, out, _ = command("evaluate", finished, "-m", "fedavg", "--json")
    scores = RunFolder(finished).by_method()["fedavg"][-1].scores
    assert [one["accuracy"] for one in json.loads(out).values()] == list(scores.test["accuracy"])


def test_wrong_arguments_get_a_sentence(command, finished, photos, tmp_path):
    image = photos / "mill/whole/000.png"
    (tmp_path / "data/chipped").mkdir(parents=True)
    Image.new("L", (9, 9)).save(tmp_path / "data/chipped/a.png")
    adapter = finished / "adapters/local/mill"
    for arguments, sentence in [
        (["predict", finished, image], "name one of the clients with --client: harbour, mill, "),
        (["predict", finished, "-c", "bay", image], "no client 'bay'; it has harbour, mill, qu"),
        (["predict", finished, "-c", "3", image], "no client '3'"),
        (["predict", finished, "-c", "0", "-m", "sgd", image], "no models of 'sgd'"),
        (["predict", tmp_path, image], "has no personal models: name the folder of a finished"),
        (["predict", tmp_path / "x", image], "there is no folder"),
        (["evaluate", adapter], "has no test data: provide some with --data"),
        (["evaluate", adapter, "--data", tmp_path / "data"], "does not know (chipped); it knows"),
        (["evaluate", adapter, "--data", tmp_path / "y"], "check --data"),
    ]:
        code, _, err = command(*arguments)
        assert code == 2
        assert sentence in err
        assert len(err.splitlines()) == 1, err
    assert command("predict", adapter, image)[0] == 0, "a folder of one client needs no --client"


def test_a_run_without_models_says_how_to_get_them(command, photos, tmp_path):
    (tmp_path / "config.toml").write_text('[run]\nmethods = ["local"]\n')
    code, _, err = command("predict", tmp_path, photos / "mill/whole/000.png")
    assert code == 2
    assert f"`pfedseq resume {tmp_path}` finishes the run" in err
