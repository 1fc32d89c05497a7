"""A user's own folder of photographs through the command line."""

import json
import shutil
import sys

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from pfedseq import cli
from pfedseq.model.token_store import Prefix
from pfedseq.runs.folder import RunFolder
from tests.model.timm_vit import timm_tensors

CONFIG = """
[run]
methods = ["pfedseq", "local"]
rounds = 3
checkpoint_every = 1
[data]
name = "folder"
source = "photos"
layout = "owner/class"
image_size = 32
store = "store"
[training]
batch_size = 8
[methods.pfedseq]
warmup_rounds = 1
max_sequence_length = 2
"""
SITES = ("Berlin", "São Paulo", "ward 3")


@pytest.fixture
def command(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["pfedseq", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "80")
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def paint(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """config.toml beside photos/SITE/CLASS/*.png; the current folder is another."""
    number = 0
    for site in SITES:
        for label in ("cracked", "whole"):
            for _ in range(6):
                paint(tmp_path / "photos" / site / label / f"{number}.png", number)
                number += 1
    (tmp_path / "config.toml").write_text(CONFIG)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def cut_off(command, place, monkeypatch, out):
    """A run that was killed in its second method."""
    append = RunFolder.append

    def crash(self, record):
        append(self, record)
        if record.method == "local" and record.round == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", crash)
        assert command("run", place / "config.toml", "--out", out)[0] == 130


def files(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_run_is_named_after_its_owners_everywhere(command, place):
    code, out, err = command("run", place / "config.toml", "--out", place / "out")
    assert code == 0
    folder = place / "out"
    for method in ("pfedseq", "local"):
        found = sorted(path.name for path in (folder / "adapters" / method).iterdir())
        assert found == sorted(SITES)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["clients"] == list(SITES)
    assert "São Paulo" in (folder / "summary.json").read_text()
    for site in SITES:
        assert f" {site} " in out
    assert (folder / "clients.png").read_bytes().startswith(b"\x89PNG")
    assert "pFedSeq round 1/3" in err
    assert "Local round 3/3" in err


def test_a_run_does_not_go_on_with_other_data(command, place, monkeypatch):
    out = place / "out"
    cut_off(command, place, monkeypatch, out)
    before = files(out)
    paint(place / "photos/Berlin/whole/new.png", 99)
    code, _, err = command("resume", out)
    assert code == 2
    assert "the data are not those that" in err
    assert "(36 images then, 37 now)" in err
    assert files(out) == before, "earlier results are intact"
    (place / "photos/Berlin/whole/new.png").unlink()
    shutil.move(place / "photos/Berlin/whole/6.png", place / "photos/Berlin/cracked/6.png")
    code, _, err = command("resume", out)
    assert code == 2
    assert "some images have a different label" in err
    shutil.move(place / "photos/Berlin/cracked/6.png", place / "photos/Berlin/whole/6.png")
    code, _, err = command("resume", out)
    assert code == 0
    assert "pFedSeq round 3/3" in err.splitlines()[0]
    assert err.splitlines()[0].endswith("finished earlier")


def test_a_run_goes_on_from_any_folder(command, place, monkeypatch, tmp_path_factory):
    cut_off(command, place, monkeypatch, "../out")
    monkeypatch.chdir(tmp_path_factory.mktemp("far"))
    code, _, err = command("resume", place / "out")
    assert (code, "warning" in err) == (0, False)
    saved = (place / "out/config.toml").read_text()
    assert f'source = "{place / "photos"}"' in saved


def test_a_comparison_holds_runs_of_the_same_data_only(command, place):
    options = ("compare", place / "config.toml", "--rounds", 1, "--out", place / "c", "--seeds")
    assert command(*options, "0", "--methods", "local")[0] == 0
    paint(place / "photos/Berlin/whole/new.png", 99)
    code, _, err = command(*options, "0", "--methods", "local,fedavg")
    assert code == 2
    assert "c/local/seed_0 was made on other data than fedavg/seed_0 has (36 images then, 37" in err
    code, _, err = command(*options, "0,1", "--methods", "local")
    assert code == 2
    assert "than local/seed_1 has" in err, "another seed is of the same images"
    (place / "photos/Berlin/whole/new.png").unlink()
    code, out, _ = command(*options, "0", "--methods", "local,fedavg")
    assert code == 0
    assert "±" not in out
    assert (place / "c/curves.png").read_bytes().startswith(b"\x89PNG")


def test_runs_of_different_data_that_are_both_there_are_not_tabulated(command, place):
    options = ("compare", place / "config.toml", "--rounds", 1, "--out", place / "c", "--seeds", 0)
    command(*options, "--methods", "local")
    shutil.move(place / "c/local", place / "kept")
    paint(place / "photos/Berlin/whole/new.png", 99)
    command(*options, "--methods", "fedavg")
    shutil.move(place / "kept", place / "c/local")
    code, _, err = command(*options, "--methods", "fedavg,local")
    assert code == 2
    assert "c/fedavg/seed_0 was made on other data than local/seed_0 has (37 images then" in err


def test_a_bare_weights_file_is_spoken_of_and_written_out(command, place):
    save_file(timm_tensors(), place / "weights.safetensors")
    config = place / "config.toml"
    config.write_text(CONFIG + '[model]\nbackbone = "weights.safetensors"\n')
    once = ("--method", "local", "--rounds", 1)
    code, _, err = command("run", config, *once, "--out", place / "a")
    assert code == 0
    assert "note: the input normalisation of" in err
    assert "model.mean = 'imagenet'" in err
    from pfedseq.config import load_config

    assert load_config(place / "a/config.toml").model.mean == (0.5, 0.5, 0.5)
    code, _, err = command(
        "run", config, *once, "--set", "model.mean=imagenet", "--out", place / "b"
    )
    assert (code, "note:" in err) == (0, False)
    assert load_config(place / "b/config.toml").model.std == (0.229, 0.224, 0.225)
    seeds = ("compare", config, "--methods", "local", "--seeds", 0, "--rounds", 1)
    assert command(*seeds, "--out", place / "c")[0] == 0
    assert command(*seeds, "--out", place / "c")[0] == 0, "what was assumed is no other option"
    code, _, err = command(*seeds, "--out", place / "c", "--set", "model.mean=imagenet")
    assert code == 2
    assert "with other options (model.mean was" in err


def test_preparing_says_what_it_met(command, place):
    (place / "photos/Berlin/whole/bad.png").write_bytes(b"no image")
    (place / "photos/ward 3/whole/bad.jpg").write_bytes(b"")
    (place / "photos/ward 3/whole/video.mov").write_bytes(b"")
    options = ("data", "prepare", "folder", "--from", place / "photos", "--size", 32)
    options += ("--set", "data.layout=owner/class", "--set", f"data.store={place / 'store'}")
    code, _, err = command(*options)
    assert code == 2
    assert "2 of 38 images cannot be read" in err
    assert "bad.png is not a readable image" in err
    assert "bad.jpg is not a readable image (the file is empty)" in err
    assert "0x" not in err
    code, out, _ = command(*options, "--skip-unreadable")
    assert code == 0
    assert "36 images, 2 classes, 3 owners" in out
    assert "Note: skipped 1 file: .mov (1)" in out
    assert "Note: left out 2 images that cannot be read" in out
    code, out, _ = command("data", "show", *options[2:])
    assert code == 0
    assert "São Paulo" in out
    assert "Note: left out 2 images" in out
    assert not list((place / "elsewhere").glob("*.png")), "a picture is drawn only where asked for"
    assert "Picture" not in out
    code, out, _ = command("data", "show", *options[2:], "--out", place / "who.png")
    assert "who.png" in out
    assert (place / "who.png").exists()


def test_interrupted_preparing_says_what_stays_and_goes_on(command, place, monkeypatch):
    from pfedseq.data import store_writer

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store_writer, "_decode_block", interrupted)
        code, _, err = command("data", "prepare", place / "config.toml")
    assert code == 130
    assert f"what is done stays in {place / 'store/images'} (*.partial)" in err
    assert [path.suffix for path in (place / "store/images").iterdir() if path.is_dir()] == [
        ".partial"
    ]
    assert command("data", "prepare", place / "config.toml")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("folder",), "folder needs --from: the folder of images"),
        (("folder", "--from", "./nowhere"), "nowhere: check --from"),
        (("CONFIG", "--size", 35), "patches of 4 pixels, so image_size must be a multiple of 4"),
        (("CONFIG", "--set", "data.source='./x'"), "x: check data.source"),
    ],
)
def test_what_cannot_be_prepared_is_said_in_the_users_words(command, place, arguments, sentence):
    given = [place / "config.toml" if a == "CONFIG" else a for a in arguments]
    code, _, err = command("data", "prepare", *given)
    assert code == 2
    assert sentence in err


def test_a_size_that_does_not_fit_is_known_before_images_are_read(command, place):
    code, _, err = command("run", place / "config.toml", "--set", "data.image_size=35")
    assert code == 2
    assert "multiple of 4" in err
    assert not (place / "store").exists()


def test_tokens_can_be_computed_ahead(command, place, monkeypatch):
    """After `--tokens` a run finds all of them and computes none."""
    layers = ("--set", 'adapter.layers="last 1"')
    code, out, err = command("data", "prepare", place / "config.toml", "--tokens", *layers)
    assert (code, err) == (0, "")
    assert "The tokens of 3 frozen layers are ready" in out
    (kept,) = (place / "store" / "tokens").glob("*/tokens.npy")
    before = kept.read_bytes()

    def nobody(self, indices):
        raise AssertionError("computed again")

    monkeypatch.setattr(Prefix, "stream", nobody)
    chosen = ("--method", "fedavg", "--rounds", 1, "--out", place / "out")
    assert command("run", place / "config.toml", *layers, *chosen)[0] == 0
    assert kept.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "nothing to precompute"),
        (
            ("--set", 'model.tokens="none"', "--set", 'adapter.layers="last 1"'),
            "nothing to precompute",
        ),
    ],
)
def test_tokens_that_cannot_be_kept_are_refused(command, place, arguments, sentence):
    code, _, err = command("data", "prepare", place / "config.toml", "--tokens", *arguments)
    assert code == 2
    assert sentence in err


def test_texts_are_called_texts(command, place):
    rows = "".join(f"{'ab'[n % 2]},{'xy'[n // 2 % 2]},word {n}\n" for n in range(24))
    (place / "notes.csv").write_text("client,label,text\n" + rows)
    code, out, _ = command(
        "data", "show", "text", "--from", place / "notes.csv", "--out", place / "x.png"
    )
    assert code == 0
    assert "Texts of each client" in out
    code, _, err = command("data", "show", "text")
    assert code == 2
    assert "text needs --from: a CSV file" in err
