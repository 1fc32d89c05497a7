"""How a round and a run are boiled down, by hand."""

import json

import pytest

from pfedseq.engines.rounds import RoundOutcome
from pfedseq.measures import find_measure
from pfedseq.runs.records import (
    BestRound,
    RoundRecord,
    RunSummary,
    harmed_clients,
    summarise_round,
    summarise_run,
)
from pfedseq.runs.scores import OverClients

COSTS = {
    "bytes_up": 10,
    "bytes_down": 20,
    "client_seconds": 1.0,
    "server_seconds": 0.5,
    "evaluate_seconds": 0.1,
    "round_seconds": 0.9,
}


def scores(accuracy, examples, validation=0.5, loss=1.0, validation_examples=1):
    return {
        "test_accuracy": accuracy,
        "test_loss": loss,
        "test_examples": examples,
        "validation_accuracy": validation,
        "validation_loss": 1.0,
        "validation_examples": validation_examples,
    }


def record_of(t, clients):
    return summarise_round("local", RoundOutcome(t, clients, **COSTS))


def test_means_and_tails():
    """Accuracies .2 (30 images) and .8 (10): plain mean .5, weighted (6 + 8) / 40 = .35."""
    record = record_of(1, {1: scores(0.8, 10, 0.25, loss=3.0), 0: scores(0.2, 30, 0.75, loss=2.0)})
    assert record.scores.clients == (0, 1)
    assert record.scores.test["accuracy"] == (0.2, 0.8)
    assert record.scores.test["loss"] == (2.0, 3.0)
    assert record.scores.over_clients("loss").client_mean == pytest.approx(2.5)
    assert record.scores.over_clients("loss").worst_client == 3.0
    assert record.scores.validation["accuracy"] == (0.75, 0.25)
    assert record.scores.validation["loss"] == (1.0, 1.0)
    assert record.scores.validation_mean == pytest.approx(0.5)
    assert record.scores.client_mean == pytest.approx(0.5)
    assert record.scores.over_test.sample_weighted == pytest.approx(0.35)
    assert record.scores.worst_client == 0.2
    many = {i: scores(i / 20, 1) for i in range(20)}
    assert record_of(1, many).scores.over_test.bottom_decile == pytest.approx(0.025)


def test_durations_are_named_so():
    record = record_of(1, {0: scores(0.2, 30)})
    floats = {k for k, v in record.to_json().items() if isinstance(v, float)}
    assert {k for k in floats if k.endswith("_seconds")} == {k for k in COSTS if "seconds" in k}


def test_headline_is_the_last_round_and_best_rounds_stand_beside_it():
    rounds = [(0.3, 0.1), (0.9, 0.2), (0.4, 0.8), (0.5, 0.3)]  # (test, validation)
    records = [record_of(t, {0: scores(a, 1, v)}) for t, (a, v) in enumerate(rounds, start=1)]
    summary = summarise_run(records)
    assert summary.rounds == 4
    assert summary.client_mean == 0.5
    assert summary.best_on_validation == BestRound(3, 0.4)
    assert summary.best_on_test_optimistic == BestRound(2, 0.9)
    assert summary.cost.bytes_up == 40
    assert summary.cost.server_seconds == pytest.approx(2.0)


def test_without_a_validation_split_nothing_is_best_on_it():
    clients = {0: scores(0.2, 1, 0.0, validation_examples=0)}
    record = record_of(1, clients)
    assert record.scores.validation_mean is None
    assert record.scores.validation["accuracy"] == (None,)
    assert summarise_run([record]).best_on_validation is None
    summary = RunSummary({"local": summarise_run([record])}, ("ann",), {}, 2.5)
    assert summary.to_json()["methods"]["local"]["best_on_validation"] is None
    assert RunSummary.from_json(json.loads(json.dumps(summary.to_json()))) == summary


def test_validation_is_averaged_over_those_who_have_it():
    clients = {0: scores(0.2, 1, 0.9), 1: scores(0.3, 1, 0.0, validation_examples=0)}
    record = record_of(1, clients)
    assert record.scores.validation_mean == pytest.approx(0.9)
    assert record.scores.validation["accuracy"] == (0.9, None)


def test_records_and_summaries_survive_json():
    skipped = record_of(1, {})
    kept = record_of(2, {3: scores(0.2, 30), 5: scores(0.8, 10, validation_examples=0)})
    assert "client_mean" not in skipped.to_json()
    for record in (skipped, kept):
        assert RoundRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    summary = RunSummary({"local": summarise_run([skipped, kept])})
    assert RunSummary.from_json(json.loads(json.dumps(summary.to_json()))) == summary
    assert summary.methods["local"].by_client == {3: 0.2, 5: 0.8}
    values = summary.to_json()["methods"]["local"]
    assert values["bytes_up"] == 20
    assert values["best_on_validation"] == {"round": 2, "client_mean": pytest.approx(0.5)}
    with pytest.raises(KeyError):
        RoundRecord.from_json({"method": "local", "round": 1})


def test_who_is_absent_is_written_down():
    """Of three clients the second did not answer; where all did, the line has no such key."""
    outcome = RoundOutcome(2, {}, **COSTS, answered=(0, 2), members=(2, 1, 0))
    record = summarise_round("local", outcome)
    assert record.absent == (1,)
    assert RoundRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    everyone = RoundOutcome(3, {}, **COSTS, answered=(0, 1, 2), members=(2, 1, 0))
    line = summarise_round("local", everyone).to_json()
    assert not {"absent", "joined", "left"} & line.keys()


def test_who_joins_and_leaves_is_written_down():
    """One that has left is not absent."""
    who = {"answered": (1, 2), "members": (1, 2), "joined": (2,), "left": (0,)}
    record = summarise_round("local", RoundOutcome(2, {}, **COSTS, **who))
    line = json.loads(json.dumps(record.to_json()))
    assert (line["joined"], line["left"], line.get("absent")) == ([2], [0], None)
    assert RoundRecord.from_json(line) == record


def scored(method, t, accuracies, mean=(), examples=40):
    """A round in which client i has that validation accuracy; none: it has no such data.

    `mean` is what the first of them have with the mean adapter.
    """
    metrics = {
        i: {
            "test_accuracy": 0.5,
            "test_loss": 1.0,
            "test_examples": 4,
            "validation_accuracy": accuracy or 0.0,
            "validation_loss": 1.0,
            "validation_examples": 0 if accuracy is None else examples,
        }
        for i, accuracy in enumerate(accuracies)
    }
    for i, accuracy in enumerate(mean):
        metrics[i]["mean_validation_accuracy"] = accuracy
    outcome = RoundOutcome(t, metrics, 0, 0, 0.0, 0.0, 0.0)
    return summarise_round(method, outcome)


def test_clients_that_are_better_off_alone_are_named():
    runs = {
        "local": [scored("local", 1, (0.9, 0.9, 0.9, None)), scored("local", 2, (0.5,) * 4)],
        "fedavg": [scored("fedavg", 2, (0.3, 0.8, 0.6, 0.9))],
        "pfedseq": [scored("pfedseq", 2, (0.4, 0.5, 0.7, None))],
        "fedrep": [scored("fedrep", 2, (0.9, 0.9, 0.9, 0.9))],
    }
    last = {name: records[-1].scores for name, records in runs.items()}
    assert harmed_clients(last, ("a", "b", "c", "d")) == {
        "pfedseq": {"local": ["a"], "fedavg": ["b"]}
    }
    assert harmed_clients({"pfedseq": last["pfedseq"]}, ("a", "b", "c", "d")) == {}


def test_nobody_is_called_worse_off_on_a_handful_of_examples():
    runs = {
        method: scored(method, 2, (accuracy,), examples=9).scores
        for method, accuracy in (("local", 0.9), ("pfedseq", 0.1))
    }
    assert harmed_clients(runs, "a") == {}


def test_nobody_is_called_worse_off_because_of_one_example():
    def harmed(ours):
        runs = {
            method: scored(method, 2, (value,), examples=20).scores
            for method, value in (("local", 0.5), ("pfedseq", ours))
        }
        return harmed_clients(runs, "a")

    assert harmed(0.45) == {}
    assert harmed(0.4) == {"pfedseq": {"local": ["a"]}}


def test_the_worst_client_has_enough_test_examples_to_judge_it_by():
    few, enough = [[0.0, 0.5, 0.9], (9, 10, 100)], [[0.0, 0.5, 0.9], (9, 9, 9)]
    found = OverClients.of(find_measure("accuracy"), tuple(few[0]), few[1])
    assert (found.worst_client, found.bottom_decile) == (0.5, 0.5)
    assert found.client_mean == pytest.approx(1.4 / 3), "the mean is over all"
    assert OverClients.of(find_measure("accuracy"), tuple(enough[0]), enough[1]).worst_client == 0.0


def test_clients_that_the_mean_adapter_serves_better_are_named():
    """Only the third is below it; the last did not say, or has nothing to judge by."""
    record = scored("pfedseq", 2, (0.4, 0.5, 0.6, None, 0.1), mean=(0.4, 0.4, 0.7, 0.9))
    assert record.scores.mean_adapter == (0.4, 0.4, 0.7, None, None)
    assert RoundRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    assert harmed_clients({"pfedseq": record.scores}, "abcde") == {
        "pfedseq": {"mean_adapter": ["c"]}
    }
    unasked = scored("pfedseq", 2, (0.4, 0.5))
    assert "mean_adapter" not in unasked.to_json()
