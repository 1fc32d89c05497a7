"""Runs from arrays and their results as frames and modules; the page of the docs as it stands."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import pfedseq
from pfedseq.cli import main
from pfedseq.data.arrays import are_given, examples_of, section_for
from pfedseq.data.config import DataConfig
from pfedseq.errors import InputError

PAGE = Path(__file__).parents[2] / "docs/howto/python.md"


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the page's program leaves: its names, and its folder."""
    place = tmp_path_factory.mktemp("page")
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    names = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        exec(compile(code, str(PAGE), "exec"), names)
    return names, place / "runs/arrays"


def test_the_page_runs_and_its_results_are_those_of_the_folder(told):
    names, folder = told
    run, summary = names["run"], names["summary"]
    assert run.summary == summary
    assert run.config.data.name == "arrays"
    rounds = pfedseq.open_run(folder).rounds()
    assert list(rounds["round"]) == [1, 2, 3] * 2
    last = rounds[(rounds["method"] == "local") & (rounds["round"] == 3)].iloc[0]
    scores = summary.methods["local"].scores
    assert last["accuracy"] == pytest.approx(scores.over_clients("accuracy").client_mean)
    assert last["balanced_accuracy"] == summary.methods["local"].client_mean
    clients = pfedseq.open_run(folder).clients()
    assert list(clients["client"]) == ["north", "south"] * 2
    assert list(clients["test_examples"]) == [5, 5] * 2
    assert list(clients["macro_f1"][:2]) == list(summary.methods["pfedseq"].scores.test["macro_f1"])
    every = pfedseq.open_run(folder).clients(every_round=True)
    assert len(every) == 2 * 3 * 2
    curves = names["run"].curves()
    assert list(curves.columns) == ["pfedseq", "local"]
    assert list(curves.index) == [1, 2, 3]
    assert curves["local"][3] == summary.methods["local"].client_mean


def test_a_model_is_a_module_and_predicts_as_its_logits_say(told):
    names, folder = told
    model, images = pfedseq.open_run(folder).model("north"), names["data"]["north"][0][:4]
    assert isinstance(model, torch.nn.Module)
    logits = model(model.prepare(images))
    assert logits.shape == (4, 2)
    assert model.predict(images) == [model.class_names[c] for c in logits.argmax(1)]
    as_pil = model.predict_proba([Image.fromarray(one) for one in images])
    assert np.allclose(as_pil, logits.detach().double().softmax(1).numpy(), atol=1e-6)
    with pytest.raises(InputError, match="has no client 'west'"):
        pfedseq.open_run(folder).model("west")


def test_one_example_alone_is_refused_where_its_parts_would_pass_for_examples(told, tmp_path):
    names, folder = told
    model, image = pfedseq.open_run(folder).model("north"), names["data"]["north"][0][0]
    Image.fromarray(image).save(tmp_path / "a.png")
    grey = image.mean(axis=-1) / 255
    for alone in (image, grey, Image.fromarray(image), tmp_path / "a.png", str(tmp_path / "a.png")):
        for use in (model.predict, model.predict_proba, model.prepare):
            with pytest.raises(InputError, match=r"pass a list of examples.*\[example\]"):
                use(alone)
        assert len(model.predict([alone])) == 1
    assert len(model.predict(np.stack([grey, grey, grey, grey]))) == 4


@pytest.fixture
def command(monkeypatch, capsys):
    """A command's exit code, and all that it said."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["pfedseq", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        return code, "".join(capsys.readouterr())

    return run


def test_commands_that_need_only_the_folder_work(told, tmp_path, command):
    names, folder = told
    Image.fromarray(names["data"]["north"][0][0]).save(tmp_path / "a.png")
    assert command("predict", folder, "--client", "north", tmp_path / "a.png")[0] == 0
    assert command("report", folder, "--out", tmp_path / "page.html")[0] == 0
    assert command("export", folder, "--all", "--to", tmp_path / "exported")[0] == 0
    code, said = command("resume", folder)
    assert code != 0
    assert "pfedseq.resume(out, data=...)" in " ".join(said.split())


def test_an_unfinished_run_goes_on_with_the_same_data_only(told, tmp_path):
    names, _ = told
    config, data = names["config"], names["data"]

    def stop(record):
        if record.round == 2:
            raise KeyboardInterrupt

    out = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        pfedseq.run(config, out, stop, data=data)
    with pytest.raises(InputError, match=r"pass them again"):
        pfedseq.resume(out)
    x, y = data["north"]
    others = {**data, "north": (np.where(x == x[0, 0, 0, 0], 7, x).astype(np.uint8), y)}
    with pytest.raises(InputError, match="some images have changed"):
        pfedseq.resume(out, data=others)
    whole, again = names["summary"], pfedseq.resume(out, data=data)
    for name, method in whole.methods.items():
        assert again.methods[name].scores == method.scores


GREY = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
COLOUR = np.stack([GREY, GREY.T, 255 - GREY], axis=-1)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (GREY, np.stack([GREY] * 3)),
        (GREY[None], np.stack([GREY] * 3)),
        (COLOUR, COLOUR.transpose(2, 0, 1)),
        (COLOUR.transpose(2, 0, 1), COLOUR.transpose(2, 0, 1)),
        (torch.from_numpy(COLOUR / 255).permute(2, 0, 1), COLOUR.transpose(2, 0, 1)),
        (Image.fromarray(COLOUR), COLOUR.transpose(2, 0, 1)),
        (Image.fromarray(GREY), np.stack([GREY] * 3)),
    ],
)
def test_images_of_any_kind_are_the_same_pixels(image, expected):
    section = section_for({"a": ([image] * 8, [0, 1] * 4)}, DataConfig(name="arrays", image_size=8))
    made = examples_of({"a": ([image] * 8, [0, 1] * 4)}, section)
    assert np.array_equal(made.images[0], expected)


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, place):
        return torch.full((3, 8, 8), place / 2), 10 - place


def test_data_sets_and_labels_of_several_clients_are_one_numbering():
    data = {"a": Pairs(), "b": (np.zeros((2, 8, 8, 3), np.uint8), np.array([9, 3]))}
    section = section_for(data, DataConfig(image_size=8))
    assert (section.name, section.partition, section.side) == ("arrays", "owners", 8)
    made = examples_of(data, section)
    assert made.class_names == ("3", "8", "9", "10")
    assert made.labels.tolist() == [3, 2, 1, 2, 0]
    assert made.owners.tolist() == [0, 0, 0, 1, 1]
    assert made.images[:3, 0, 0, 0].tolist() == [0, 128, 255]


def test_texts_are_texts():
    data = {"a": (["good", "bad"], ["+", "-"]), "b": (["fine"], ["+"])}
    section = section_for(data, DataConfig())
    assert (section.name, are_given(section)) == ("text", True)
    made = examples_of(data, section)
    assert (made.texts, made.class_names) == (("good", "bad", "fine"), ("+", "-"))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "must name clients"),
        ({"a": ([GREY], [0, 1])}, "a has 1 examples and 2 labels"),
        ({"a": ([], [])}, "a has no examples"),
        ({"a": 3}, "must be a pair"),
        ({"a": ([GREY.astype(np.int32)], [0])}, "image 0 of a is int32: images are uint8"),
        ({"a": ([GREY.astype(float)], [0])}, "values from 0 to 252: floats must lie in"),
        ({"a": ([GREY.ravel()], [0])}, r"has the shape \(64,\)"),
        ({"a": ([GREY, GREY], [0, "b"])}, "all integers or all names"),
        ({"a": (["x", GREY], ["p", "q"])}, "the examples mix texts with"),
    ],
)
def test_what_cannot_be_read_gets_a_sentence(data, says):
    with pytest.raises(InputError, match=says):
        examples_of(data, section_for(data, DataConfig(image_size=8)))


def test_public_names_are_shown():
    assert {"open_run", "run", "resume", "Measure", "register_measure"} <= set(dir(pfedseq))
    for name in pfedseq.__all__:
        assert getattr(pfedseq, name) is not None


def test_without_pandas_there_is_a_sentence(told, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"pip install 'pfedseq\[frames\]'"):
        told[0]["run"].rounds()


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no run"):
        pfedseq.open_run(tmp_path)
