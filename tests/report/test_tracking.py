"""Rounds on their way to TensorBoard and MLflow."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pfedseq.cli import app
from pfedseq.config import make_config
from pfedseq.errors import InputError
from pfedseq.report import tracking as tracking_module
from pfedseq.report.tracking import Tracking, open_tracking, tracked, tracked_values
from pfedseq.runs.records import Cost, RoundRecord
from pfedseq.runs.sweep import SweepEntry
from tests.scored import scores_of

SCORES = scores_of((0.4, 0.6), loss=1.5)
COST = Cost(10, 20, 1.0, 0.5, 0.1, 0.9)
ROUNDS = [
    RoundRecord("fedavg", 1, None, COST, answered=2),
    RoundRecord("fedavg", 2, SCORES, COST, answered=1),
]
CONFIG = make_config({"run": {"methods": ["fedavg"], "name": "tracked"}})


def refuse(sentence):
    pytest.fail(sentence)


def test_what_is_a_single_number_is_tracked():
    assert "accuracy/client_mean" not in tracked_values(ROUNDS[0])
    values = tracked_values(ROUNDS[1])
    assert (values["accuracy/client_mean"], values["loss/client_mean"]) == (0.5, 1.5)
    assert (values["cost/bytes_down"], values["clients/answered"]) == (20.0, 1.0)
    assert "accuracy/validation_mean" not in values  # nobody holds validation examples


def test_tensorboard_reads_back_what_was_logged(tmp_path):
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard here"
    )
    tracking = open_tracking("tensorboard", CONFIG, tmp_path, refuse)
    assert not list(tmp_path.iterdir())  # a run's folder must be empty when it begins
    for record in ROUNDS:
        tracking.log(record)
    tracking.close()
    found = events.EventAccumulator(str(tmp_path / "tensorboard" / "fedavg"))
    found.Reload()
    assert [(e.step, e.value) for e in found.Scalars("accuracy/client_mean")] == [(2, 0.5)]
    assert [e.step for e in found.Scalars("cost/bytes_up")] == [1, 2]


def test_mlflow_reads_back_what_was_logged(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    tracking = open_tracking("mlflow", CONFIG, Path("runs/x"), refuse)
    for record in ROUNDS:
        tracking.log(record)
    tracking.close()
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("pfedseq")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "tracked/fedavg/seed_0"
    assert run.info.status == "FINISHED"
    assert run.data.params["run.methods"] == "['fedavg']"
    history = client.get_metric_history(run.info.run_id, "accuracy/client_mean")
    assert [(m.step, m.value) for m in history] == [(2, 0.5)]


def test_a_tracker_that_fails_is_told_of_once_and_ends_nothing():
    class Broken:
        def log(self, method, t, values):
            raise ConnectionError("the server is away")

        def close(self):
            raise AssertionError("not asked again")

    told = []
    tracking = Tracking(Broken(), told.append)
    for record in ROUNDS:
        tracking.log(record)
    tracking.close()
    assert len(told) == 1
    assert "the server is away" in told[0]


def test_what_is_unknown_or_missing_is_refused_before_the_run(monkeypatch, tmp_path):
    with pytest.raises(InputError, match="choose tensorboard or mlflow"):
        open_tracking("wandb", CONFIG, tmp_path, refuse)
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as if it were not installed
    with pytest.raises(InputError, match=r"pip install pfedseq\[mlflow\]"):
        open_tracking("mlflow", CONFIG, tmp_path, refuse)


def test_each_run_of_a_sweep_has_a_tracker_of_its_own(monkeypatch, tmp_path):
    """It hears its own rounds, after the display; the next run, or a fault, closes it."""
    heard = []

    class Noting:
        def __init__(self, config, folder):
            self.place = str(folder.relative_to(tmp_path))

        def log(self, method, t, values):
            heard.append((self.place, t))

        def close(self):
            heard.append((self.place, "closed"))

    monkeypatch.setitem(tracking_module.TRACKERS, "noting", Noting)
    entries = [SweepEntry("fedavg/seed_0", CONFIG), SweepEntry("fedavg/seed_1", CONFIG)]

    def announce(entry):
        return lambda record: heard.append(("shown", record.round))

    def play():
        with tracked(announce, "noting", entries, tmp_path, refuse) as both:
            for entry in entries:
                listen = both(entry)
                listen(ROUNDS[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play()
    one, other = "fedavg/seed_0", "fedavg/seed_1"
    assert heard[1:] == [
        *(("shown", 1), (one, 1), (one, "closed")),
        *(("shown", 1), (other, 1), (other, "closed")),
    ]
    with tracked(announce, None, entries, tmp_path, refuse) as plain:
        assert plain is announce


@pytest.mark.parametrize("command", [["compare", "demo"], ["reproduce", "table1"]])
def test_a_sweep_refuses_an_unknown_tracker_before_its_first_run(command, tmp_path):
    asked = [*command, "--out", str(tmp_path / "new"), "--track", "wandb", "--seeds", "0"]
    with pytest.raises(InputError, match="choose tensorboard or mlflow"):
        CliRunner().invoke(app, asked, catch_exceptions=False)
    assert not (tmp_path / "new").exists()
