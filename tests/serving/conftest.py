"""One short run of all methods, whose models are put to use."""

import sys

import pytest

from pfedseq import cli
from pfedseq.config import make_config
from pfedseq.methods import METHODS
from pfedseq.runs.run import run
from tests.cli.tiles import draw_tiles
from tests.every_method import OPTIONS


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """SITE/CLASS/*.png of three sites."""
    folder = tmp_path_factory.mktemp("tiles") / "photos"
    draw_tiles(folder)
    return folder


@pytest.fixture(scope="session")
def finished(photos, tmp_path_factory):
    """The folder of a run of every method: three clients, two rounds, the package's small ViT."""
    place = tmp_path_factory.mktemp("finished")
    options = {
        "pfedseq": {"warmup_rounds": 1, "max_sequence_length": 2},
        "perada": {"distillation_steps": 1},
    }
    values = {
        "run": {"methods": list(METHODS), "rounds": 2, "evaluate_every": 2},
        "data": {
            "name": "folder",
            "source": str(photos),
            "layout": "owner/class",
            "image_size": 32,
            "store": str(place / "store"),
            "skip_unreadable": True,
        },
        "auxiliary": {"num_images": 8},
        "adapter": {"alpha": 16, "rank": 3, "targets": ["query", "mlp_out"]},
        "training": {"lr": 0.05, "batch_size": 12},
        "methods": OPTIONS | options,
        "engine": {"device": "cpu"},
    }
    run(make_config(values), place / "run")
    return place / "run"


@pytest.fixture
def command(monkeypatch, capsys):
    """Run `pfedseq …` in this process: exit code, stdout, stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["pfedseq", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return call
