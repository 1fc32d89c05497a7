"""Relative paths in a config count from its folder, and survive a change of folder."""

import pytest

from pfedseq.config import load_config, make_config


@pytest.fixture
def place(tmp_path, monkeypatch):
    """configs/a.toml beside data/photos; the current folder is another."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "data/photos").mkdir(parents=True)
    (tmp_path / "elsewhere/local").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def written(place, data, model="", *overrides):
    path = place / "configs/a.toml"
    path.write_text(f"[data]\nname = 'folder'\n{data}\n[model]\n{model}\n")
    return load_config(path, overrides)


def test_from_the_configs_folder(place):
    config = written(place, "source = '../data/photos'\nstore = 'cache'")
    assert config.data.source == str(place / "data/photos")
    assert config.data.store == place / "configs/cache"


def test_from_the_current_folder_where_nothing_is_beside_the_config(place):
    assert written(place, "source = 'local'").data.source == str(place / "elsewhere/local")
    override = written(place, "source = 'x'", "", "data.source=local", "data.store=here")
    assert override.data.source == str(place / "elsewhere/local")
    assert override.data.store == place / "elsewhere/here"


def test_what_is_nowhere_is_named_whole_unless_it_may_be_on_the_hub(place):
    assert written(place, "source = './photos'").data.source == str(place / "configs/photos")
    assert written(place, "source = 'someone/something'").data.source == "someone/something"
    (place / "configs/someone/something").mkdir(parents=True)
    assert written(place, "source = 'someone/something'").data.source == str(
        place / "configs/someone/something"
    )
    assert written(place, "source = '/no/such'").data.source == "/no/such"


def test_backbones(place):
    (place / "configs/vit.safetensors").touch()
    (place / "configs/demo").mkdir()
    for given, expected in (
        ("vit.safetensors", str(place / "configs/vit.safetensors")),
        ("demo", "demo"),
        ("random:vit-tiny", "random:vit-tiny"),
        ("google/vit-base-patch16-224", "google/vit-base-patch16-224"),
    ):
        config = written(place, "source = '../data/photos'", f"backbone = '{given}'")
        assert config.model.backbone == expected


def test_a_home_folder_is_written_out(place, monkeypatch):
    monkeypatch.setenv("HOME", str(place))
    config = make_config({"data": {"name": "folder", "source": "~/data/photos"}})
    assert config.data.source == str(place / "data/photos")


def test_a_named_normalisation_becomes_numbers():
    config = make_config({"model": {"mean": "imagenet"}})
    assert config.model.mean == (0.485, 0.456, 0.406)
    assert config.model.std == (0.229, 0.224, 0.225)
    mixed = make_config({"model": {"mean": "half", "std": [1, 1, 1]}})
    assert (mixed.model.mean, mixed.model.std) == ((0.5, 0.5, 0.5), (1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="one of half, imagenet, clip, not 'imgnet'"):
        make_config({"model": {"std": "imgnet"}})
