"""The comparison table by hand."""

import json

import pytest

from pfedseq.experiments.statistics import mean_interval
from pfedseq.report.comparison import tabulate, write_comparison
from pfedseq.runs.records import BestRound, Cost, MethodSummary


def summary(accuracies, seconds, rounds=2):
    return MethodSummary(
        rounds=rounds,
        client_mean=sum(accuracies) / len(accuracies),
        worst_client=min(accuracies),
        bottom_decile=min(accuracies),
        sample_weighted=accuracies[0],
        test_accuracy=tuple(accuracies),
        best_on_validation=None,
        best_on_test_optimistic=BestRound(1, 1.0),
        cost=Cost(100, 60, seconds, 1.0, 0.0),
    )


def test_table_by_hand():
    """Two seeds, two clients. Against the first method, client by client and seed by seed:

    fedavg − local = (0.4 − 0.5, 0.9 − 0.7; 0.6 − 0.6, 0.8 − 0.9) = (−0.1, 0.2, 0, −0.1):
    mean 0, one better and two worse. Means by seed .65 and .7: mean .675, std √(2·.025²) = .0354.
    Seconds a round: local (9 + 1 + 9 + 1) / 4 = 5, fedavg (19 + 1 + 19 + 1) / 4 = 10: ratio 2.
    """
    rows = tabulate(
        {
            "local": [summary([0.5, 0.7], 9), summary([0.6, 0.9], 9)],
            "fedavg": [summary([0.4, 0.9], 19), summary([0.6, 0.8], 19)],
        }
    )
    local, fedavg = rows
    assert local.difference.mean == 0
    assert (local.wins, local.losses) == (0, 0)
    assert local.cost_ratio == 1
    assert fedavg.difference.mean == pytest.approx(0)
    assert (fedavg.wins, fedavg.losses) == (1, 2)
    assert fedavg.client_mean.mean == pytest.approx(0.675)
    assert fedavg.client_mean.std == pytest.approx(0.0353553, rel=1e-5)
    assert fedavg.cost_ratio == pytest.approx(2)
    assert fedavg.bytes_up_per_round == 50
    assert (fedavg.best_on_validation, fedavg.best_on_test_optimistic.mean) == (None, 1)
    assert fedavg.bottom_decile.mean == pytest.approx(0.5)


def test_differences_are_paired_seed_by_seed_and_client_by_client():
    """fedavg − local = [[.1, .2], [.2, .3]]: mean .2, and its interval that of these numbers.

    Unpaired, the clients' own levels would hide it.
    """
    rows = tabulate(
        {
            "local": [summary([0.1, 0.7], 1), summary([0.5, 0.3], 1)],
            "fedavg": [summary([0.2, 0.9], 1), summary([0.7, 0.6], 1)],
        }
    )
    expected = mean_interval([[0.1, 0.2], [0.2, 0.3]])
    found = rows[1].difference
    for key in ("mean", "low", "high"):
        assert getattr(found, key) == pytest.approx(getattr(expected, key))


def test_without_local_there_is_no_cost_ratio():
    (row,) = tabulate({"fedavg": [summary([0.5], 3)]})
    assert row.cost_ratio is None
    assert row.client_mean.std == 0


def test_the_table_is_written_as_json(tmp_path):
    rows = tabulate({"local": [summary([0.5], 3)], "fedavg": [summary([0.25], 3)]})
    write_comparison(rows, [4], tmp_path / "comparison.json")
    saved = json.loads((tmp_path / "comparison.json").read_text())
    assert saved["seeds"] == [4]
    assert saved["reference"] == "local"
    assert saved["methods"]["fedavg"]["difference"] == {
        "mean": -0.25,
        "low": None,
        "high": None,
    }
