"""The README's own photos and own method: what it tells people to type works."""

import re
from pathlib import Path

import pytest

import pfedseq
from pfedseq.errors import InputError
from pfedseq.methods import METHODS, register
from tests.cli.tiles import draw_tiles

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language):
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.M | re.S)
    return found


@pytest.fixture
def method_names():
    """As before, whatever the test registers."""
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


def test_your_own_method_in_one_file(tmp_path, monkeypatch, capsys, method_names):
    monkeypatch.chdir(tmp_path)
    quick = '"run.rounds=1", "data.num_clients=3", "data.max_images_per_client=12"'
    code = block("python").replace('"run.rounds=5"', quick)
    assert quick in code
    exec(compile(code, "README.md", "exec"), {})
    assert 0 <= float(capsys.readouterr().out) <= 1
    assert len(list((tmp_path / "runs/mine/adapters/mine").iterdir())) == 3
    with pytest.raises(InputError, match="already a method 'fedavg'"):
        register(METHODS["mine"].__class__(**{**vars(METHODS["mine"]), "name": "fedavg"}))


def test_your_own_photos_in_five_lines(tmp_path):
    draw_tiles(tmp_path / "photos")
    (tmp_path / "photos/mill/whole/099.png").unlink()  # the one that cannot be read
    config = tmp_path / "photos.toml"
    config.write_text(block("toml"))
    overrides = [f"data.store={tmp_path}", "run.rounds=1", "engine.device=cpu"]
    checked = pfedseq.load_config(config, overrides)
    summary = pfedseq.run(checked, tmp_path / "out")
    assert summary.clients == ("harbour", "mill", "quarry")


def test_every_page_that_is_named_is_there():
    named = re.findall(r"\]\(([^)#:]+)\)", PAGE)
    assert len(named) > 8
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_it_is_read_in_a_minute():
    assert len(PAGE.split()) <= 900
