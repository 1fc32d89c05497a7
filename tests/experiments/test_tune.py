"""Grid searches: the grids, the budget, what is chosen, and that no test example is read."""

import csv

import numpy as np
import pytest
from typer.testing import CliRunner

from pfedseq.cli import app
from pfedseq.config import load_config, make_config
from pfedseq.errors import InputError
from pfedseq.experiments.tune import (
    Trial,
    at_edges,
    trials,
    tune,
    winners,
    winning_config,
    without_test,
)
from pfedseq.methods import METHODS, find_method
from pfedseq.runs.run import tell_nobody
from pfedseq.runs.world import World
from pfedseq.workloads.images.source import ImageSource

SMALL = {
    "run": {"rounds": 2, "name": "small", "methods": ["ditto", "fedavg"]},
    "data": {
        "name": "digits",
        "partition": "dirichlet",
        "alpha": 1.0,
        "num_clients": 2,
        "max_images_per_client": 30,
    },
    "training": {"lr": 0.02, "batch_size": 8},
}


@pytest.mark.parametrize("method", METHODS)
def test_every_point_of_a_grid_is_a_valid_config(method):
    grid = find_method(method).grid
    for option, values in grid.items():
        assert list(values) == sorted(values)
        for value in values:
            config = make_config({"methods": {method: {option: value}}})
            assert getattr(config.method_config(method), option) == value


def test_one_budget_for_all_and_always_the_same_part_of_a_grid():
    for method in METHODS:
        points = [trial.values for trial in trials(method, 4)]
        assert len(points) == 4
        assert len({tuple(point.items()) for point in points}) == 4
        assert points == [trial.values for trial in trials(method, 4)]
    assert len(trials("pfedseq", 1000)) == 6 * 4 * 5


def test_a_best_value_at_the_edge_is_noticed():
    assert at_edges(Trial("ditto", {"proximal_weight": 10.0})) == ["proximal_weight"]
    assert at_edges(Trial("ditto", {"proximal_weight": 0.01})) == ["proximal_weight"]
    assert at_edges(Trial("ditto", {"proximal_weight": 1.0})) == []
    inner = {"max_sequence_length": 30, "state_dim": 8, "learner_lr": 0.001}
    assert at_edges(Trial("pfedseq", inner)) == ["max_sequence_length"]


def test_the_winner_is_the_best_on_validation_and_its_values_stay_beside_others():
    config = make_config(SMALL, ["methods.ditto.lr=0.03"])
    found = [
        Trial("ditto", {"proximal_weight": 1.0}, 0.7),
        Trial("ditto", {"proximal_weight": 0.1}, 0.6),
        Trial("fedavg", {"lr": 0.05}, None),
    ]
    assert winners(found) == found[:1]
    best = winning_config(config, winners(found))
    assert best.method_config("ditto").proximal_weight == 1.0
    assert best.method_config("ditto").lr == 0.03
    assert best.run.methods == ("ditto",)


def test_the_test_examples_are_never_read(tmp_path, monkeypatch):
    config = make_config(SMALL)
    hidden = np.concatenate([client.test for client in World.build(config).data.clients])
    read = set()
    for name in ("inputs", "pixels", "labels"):
        whole = getattr(ImageSource, name)

        def watched(self, indices, whole=whole):
            read.update(np.asarray(indices).tolist())
            return whole(self, indices)

        monkeypatch.setattr(ImageSource, name, watched)
    found = tune(config, ["ditto"], [0], 2, tmp_path, lambda _: None, tell_nobody)
    assert len(found) == 2
    assert found[0].score >= found[1].score
    assert read
    assert not read & set(hidden.tolist())


def test_without_validation_examples_there_is_nothing_to_tune_on():
    with pytest.raises(InputError, match="validation_fraction"):
        without_test(make_config(SMALL, ["data.validation_fraction=0"]))


def test_the_command_prints_trials_and_writes_the_winner(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = [f"--set=data.{k}={v}" for k, v in SMALL["data"].items()]
    arguments = ["tune", "demo", "--methods", "fedavg", "--trials", "2", "--rounds", "1", *small]
    done = CliRunner().invoke(app, [*arguments, "--set", "run.checkpoint_every=1"])
    assert done.exit_code == 0, done.output
    assert "lies at the edge of its grid" in done.output or "lr = 0.0" in done.output
    out = tmp_path / "runs" / "tune-demo"
    with (out / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    scores = [float(row["validation_accuracy"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    winner = load_config(out / "winner.toml").method_config("fedavg")
    assert f"lr={winner.lr:g}" == rows[0]["values"]
