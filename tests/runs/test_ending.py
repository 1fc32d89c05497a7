"""Which round's models are kept, when a method stops, and that a crash changes neither."""

import json
from dataclasses import dataclass, replace

import pytest
import torch

from pfedseq.config import dump_config, make_config
from pfedseq.engines.local import LocalClients
from pfedseq.errors import InputError
from pfedseq.measures import Score
from pfedseq.methods import find_method
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.run import run_method
from tests.run_folder import lines
from tests.toys import QuadraticTask, make_setup, random_centers

CENTERS, SIZES = random_centers(3), (4, 2, 3)
VALIDATION = (0.3, 0.6, 0.5, 0.4, 0.9, 0.1)
"""Everybody's accuracy on validation by round."""


@dataclass
class ScriptedTask(QuadraticTask):
    """Validation accuracy is as written in the script; the test scores are those of φ."""

    t: int = 0
    script: tuple = VALIDATION
    step: str = ""

    def score(self, phi, split, full=False):
        found = super().score(phi, split)
        if split == "validation" and self.step == "evaluate":
            if not self.script:
                return Score({"accuracy": 0.0, "loss": 0.0}, 0)
            return Score({"accuracy": self.script[self.t - 1], "loss": found["loss"]}, 5)
        return found


@dataclass
class ScriptedSite:
    own: ScriptedTask

    def task(self, t, step):
        return replace(self.own, t=t, step=step)


class ScriptedStage:
    """Three clients whose validation accuracies are known before they train."""

    names = ("ann", "ben", "cleo")
    device = torch.device("cpu")

    def __init__(self, script=VALIDATION, **section):
        self.config = make_config({"run": {"methods": ["ditto"], "rounds": 6, **section}})
        self.sites = [
            ScriptedSite(ScriptedTask(center, size, script=script))
            for center, size in zip(CENTERS, SIZES, strict=True)
        ]

    def start(self, name, states, places):
        method = find_method(name)
        options = method.config(lr=0.1)
        clients = LocalClients(method.client, options, self.sites, threads=1, states=states)
        setup = make_setup(CENTERS, SIZES, self.config.run.rounds)
        return method.server(options, setup), clients

    def made_with(self, name):
        return {}

    def play(self, place, listener=None):
        """Run, or go on, in the folder; the summary and what each client saved last."""
        folder = RunFolder(place)
        if not folder.config.exists():
            RunFolder.create(place, dump_config(self.config))
        run_method(self, folder, "ditto", listener)
        saved = [site.own.saved[-1].flat() for site in self.sites]
        return folder.write_summary().methods["ditto"], torch.stack(saved)


def test_the_models_of_the_best_round_on_validation_are_kept(tmp_path):
    """Validation is best in round 5 of 6: what is saved and reported is what round 5 gave."""
    best, kept = ScriptedStage(keep="best_on_validation").play(tmp_path / "best")
    five, models = ScriptedStage(rounds=5).play(tmp_path / "five")
    last, others = ScriptedStage().play(tmp_path / "last")
    assert torch.equal(kept, models)
    assert not torch.equal(kept, others)
    assert (best.rounds, best.kept_round, best.keep) == (6, 5, "best_on_validation")
    assert best.scores.test == five.scores.test != last.scores.test
    assert best.best_on_validation.round == 5
    assert best.client_mean == pytest.approx(best.best_on_validation.client_mean)
    assert (last.kept_round, last.keep) == (6, "last")
    written = json.loads((tmp_path / "best/summary.json").read_text())["methods"]["ditto"]
    assert (written["kept_round"], written["rounds"], written["planned_rounds"]) == (5, 6, 6)


def test_the_first_of_equally_good_rounds_is_kept(tmp_path):
    script = (0.3, 0.6, 0.6, 0.2, 0.6, 0.6)
    found, _ = ScriptedStage(script, keep="best_on_validation").play(tmp_path)
    assert found.kept_round == 2


@pytest.mark.parametrize(("patience", "stops"), [(1, 3), (2, 4), (3, 6), (None, 6)])
def test_patience_counts_evaluations_without_a_better_one(tmp_path, patience, stops):
    """Best in round 2, then 0.5, 0.4, then 0.9 in round 5: a patience of three sees it."""
    stage = ScriptedStage(patience=patience)
    found, _ = stage.play(tmp_path)
    assert (found.rounds, found.kept_round, found.planned_rounds) == (stops, stops, 6)
    assert stage.play(tmp_path)[0] == found  # there is nothing left to do
    assert [line["round"] for line in lines(tmp_path)] == list(range(1, stops + 1))


def test_patience_counts_evaluations_and_not_rounds(tmp_path):
    found, _ = ScriptedStage(patience=1, evaluate_every=2).play(tmp_path)
    assert found.rounds == 4  # rounds 2 and 4 were evaluated


@pytest.mark.parametrize("checkpoint_every", [1, 3])
@pytest.mark.parametrize("cut_at", [1, 2, 3, 4, 5])
def test_a_run_that_is_cut_off_keeps_and_stops_as_an_unbroken_one(
    tmp_path, checkpoint_every, cut_at
):
    section = {"keep": "best_on_validation", "patience": 3, "checkpoint_every": checkpoint_every}
    whole = ScriptedStage(**section).play(tmp_path / "whole")

    def cut(record):
        if record.round == cut_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ScriptedStage(**section).play(tmp_path / "cut", cut)
    again = ScriptedStage(**section).play(tmp_path / "cut")
    assert torch.equal(again[1], whole[1])
    assert replace(again[0], cost=whole[0].cost) == whole[0]
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


@pytest.mark.parametrize("section", [{"keep": "best_on_validation"}, {"patience": 2}])
def test_without_validation_data_there_is_nothing_to_choose_by(tmp_path, section):
    (name,) = section
    with pytest.raises(InputError, match=rf"run\.{name}.*set data.validation_fraction"):
        ScriptedStage((), **section).play(tmp_path)


def test_a_lower_loss_is_the_better_one(tmp_path):
    """Test loss falls from round to round, so the best on test is the last by loss."""
    found, _ = ScriptedStage(headline="loss", keep="best_on_validation").play(tmp_path)
    losses = [sum(line["test"]["loss"]) for line in lines(tmp_path)]
    assert losses == sorted(losses, reverse=True)
    assert found.best_on_test_optimistic.round == found.kept_round == 6
    assert found.scores.worst_client == max(found.scores.test["loss"])
