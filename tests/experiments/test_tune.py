"""Grid searches: the grids, the budget, what is chosen, and that no test example is read."""

import csv
from dataclasses import replace
from math import log

import numpy as np
import pytest
from typer.testing import CliRunner

from pfedseq.cli import app
from pfedseq.config import load_config, make_config
from pfedseq.errors import InputError
from pfedseq.experiments.tune import (
    Search,
    Trial,
    at_edges,
    indistinct,
    ranked,
    read_grid,
    standard_error,
    tune,
    winners,
    winning_config,
    with_values,
    without_test,
)
from pfedseq.measures import find_measure
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


def searched(method, budget, score, grid=None, rate=0.01):
    """The trials of a search in which `score` says how good values are; None: it fails."""
    search = Search(method, rate, budget, find_measure("accuracy"), grid)
    for trial in search.wanted():
        got = score(trial.values)
        search.done.append(trial if got is None else replace(trial, score=got, loss=1 - got))
    return search.done


def test_one_budget_for_all_methods_and_the_rate_comes_first():
    for method in METHODS:
        for budget in (1, 2, 5, 9):
            done = searched(method, budget, lambda values: 0.5)
            assert len(done) == budget
            assert len({str(trial.values) for trial in done}) == budget
            assert done == searched(method, budget, lambda values: 0.5), "always the same"
            rates = [trial.values for trial in done[:3]]
            assert rates == [{"lr": 0.01}, {"lr": 0.04}, {"lr": 0.0025}][:budget]


def test_the_rate_is_followed_as_long_as_it_helps_and_then_the_methods_own_are_tried():
    def best_near(target):
        return lambda values: 1 / (1 + abs(log(values["lr"] / target)))

    done = searched("ditto", 8, best_near(0.7))
    assert [trial.values["lr"] for trial in done] == [
        0.01,
        0.04,
        0.0025,
        0.16,
        0.64,
        2.56,
        0.64,
        0.64,
    ]
    assert [set(trial.values) for trial in done[6:]] == [{"lr", "proximal_weight"}] * 2
    down = searched("local", 6, best_near(0.0006))
    assert [trial.values["lr"] for trial in down][:4] == [0.01, 0.04, 0.0025, 0.000625]
    assert [trial.values["lr"] for trial in down][4:] == [0.000156, 0.00125], "then between"
    diverging = searched("local", 4, lambda values: None if values["lr"] > 0.002 else 0.5)
    assert diverging[3].values == {"lr": 0.000625}


def test_a_rate_at_which_adapters_hardly_move_is_raised_until_they_do():
    def rates(budget, moves_from):
        search = Search("local", 1e-4, budget, find_measure("accuracy"))
        for trial in search.wanted():
            still = trial.values["lr"] < moves_from
            near = 1 / (1 + abs(log(trial.values["lr"] / 0.4)))
            search.done.append(replace(trial, score=0.0 if still else near, loss=1.0, still=still))
        return [trial.values["lr"] for trial in search.done]

    assert rates(7, 0.01) == [1e-4, 1.6e-3, 0.0256, 0.102, 0.0064, 0.408, 1.63]
    assert rates(3, 1e9) == [1e-4, 1.6e-3, 0.0256], "within the budget"
    assert rates(3, 1e-5) == [1e-4, 4e-4, 2.5e-5]


def test_a_trial_knows_that_its_adapters_hardly_moved(tmp_path):
    config = make_config(SMALL, ["training.head_lr=0.01"])
    for name, lr in (("still", 1e-6), ("moved", 1.0)):
        out, grid = tmp_path / name, {"lr": [lr]}
        (trial,) = tune(config, ["fedavg"], [0, 1], 1, out, lambda _: None, tell_nobody, grid)
        assert trial.still == (name == "still")
        worlds = [without_test(make_config(SMALL, [f"run.seed={seed}"])) for seed in (0, 1)]
        sizes = [len(c.validation) for world in worlds for c in world.data.clients]
        assert trial.error == standard_error(trial.score, sizes)


def test_a_users_grid_takes_the_place_of_the_search():
    grid = read_grid(
        ["training.lr=0.1,0.2", "adapter.alpha=2,16", "methods.ditto.proximal_weight=1,2,3"]
    )
    assert grid == {
        "lr": [0.1, 0.2],
        "adapter.alpha": [2, 16],
        "methods.ditto.proximal_weight": [1, 2, 3],
    }
    assert len(searched("local", 100, lambda _: 0.5, grid)) == 4
    assert len(searched("ditto", 100, lambda _: 0.5, grid)) == 12
    assert len(searched("ditto", 5, lambda _: 0.5, grid)) == 5
    config = with_values(make_config(SMALL), Trial("ditto", {"lr": 0.2, "adapter.alpha": 16}))
    assert config.method_config("ditto").lr == 0.2
    assert config.method_config("local").lr == SMALL["training"]["lr"]
    assert config.adapter.alpha == 16
    shared = read_grid(["training.batch_size=4,16", "training.momentum=0.5"])
    assert shared == {"training.batch_size": [4, 16], "momentum": [0.5]}
    small = with_values(make_config(SMALL), Trial("ditto", {"training.batch_size": 4}))
    assert small.training.batch_size == 4
    for wrong in (["lr"], ["=1"], ["lr=1", "lr=2"], ["lr="]):
        with pytest.raises(InputError, match="must look like"):
            read_grid(wrong)
    with pytest.raises(InputError, match="unknown config key"):
        with_values(make_config(SMALL), Trial("ditto", {"no_such": 1}))


def test_equal_scores_are_decided_by_the_loss_and_failures_come_last():
    trials = [
        Trial("local", {"lr": 1.0}),
        Trial("local", {"lr": 2.0}, 0.5, 0.9),
        Trial("local", {"lr": 3.0}, 0.5, 0.7),
        Trial("local", {"lr": 4.0}, 0.6, 2.0),
    ]
    order = [trial.values["lr"] for trial in ranked(trials, find_measure("accuracy"))]
    assert order == [4.0, 3.0, 2.0, 1.0]


def test_trials_within_the_standard_error_of_the_best_are_counted():
    # Shares of 0.6 on 10 and 40 examples: √(0.24 · (1/10 + 1/40)) / 2 = √0.03 / 2
    error = standard_error(0.6, [10, 40])
    assert error == pytest.approx(0.03**0.5 / 2)
    best = Trial("local", {"lr": 1.0}, 0.6, error=error)
    tried = [
        best,
        Trial("local", {"lr": 2.0}, 0.515),
        Trial("local", {"lr": 3.0}, 0.512),
        Trial("local", {"lr": 4.0}, None),
        Trial("ditto", {"lr": 1.0}, 0.6),
    ]
    assert indistinct(best, tried, find_measure("accuracy")) == [tried[1]]
    assert indistinct(replace(best, error=0.0), tried, find_measure("accuracy")) == []
    cheaper = [replace(best, score=1.0, error=0.2), Trial("local", {"lr": 2.0}, 1.1)]
    assert indistinct(cheaper[0], cheaper, find_measure("loss")) == [cheaper[1]]


def test_a_best_value_at_the_edge_is_noticed():
    tried = [Trial("ditto", {"lr": 0.1, "proximal_weight": w}) for w in (0.1, 1.0, 10.0)]
    assert at_edges(tried[0], tried) == ["proximal_weight"]
    assert at_edges(tried[1], tried) == []
    assert at_edges(tried[2], tried) == ["proximal_weight"]


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
    assert "Run the best with: pfedseq run runs/tune-demo/winner.toml" in done.output
    assert "Validation accuracy in %, mean over clients" in done.output
    out = tmp_path / "runs" / "tune-demo"
    with (out / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    scores = [float(row["validation_accuracy"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    for row in rows:
        accuracy, loss = float(row["validation_accuracy"]), float(row["validation_loss"])
        assert f"{100 * accuracy:.2f} {loss:.4g}" in " ".join(done.output.split())
    winner = load_config(out / "winner.toml").method_config("fedavg")
    assert f"lr={winner.lr:g}" == rows[0]["values"]
    alone = load_config(out / "best-fedavg.toml")
    assert alone.method_config("fedavg") == winner
    assert alone.run.rounds == 1
