"""The comparison table by hand."""

import json

import pytest

from pfedseq.experiments.results import tabulate
from pfedseq.experiments.statistics import mean_interval
from pfedseq.runs.records import Cost
from tests.scored import summary_of


def summary(accuracies, seconds, rounds=2):
    return summary_of(accuracies, rounds=rounds, cost=Cost(100, 60, seconds, 1.0, 0.0))


def table(**methods):
    """Summaries by method, seed by seed."""
    return tabulate({name: dict(enumerate(runs)) for name, runs in methods.items()})


def test_table_by_hand():
    """Two seeds, two clients. Against the first method, client by client and seed by seed:

    fedavg − local = (0.4 − 0.5, 0.9 − 0.7; 0.6 − 0.6, 0.8 − 0.9) = (−0.1, 0.2, 0, −0.1):
    mean 0, one better and two worse. Means by seed .65 and .7: mean .675, std √(2·.025²) = .0354.
    Seconds a round: local (9 + 1 + 9 + 1) / 4 = 5, fedavg (19 + 1 + 19 + 1) / 4 = 10: ratio 2.
    """
    rows = table(
        local=[summary([0.5, 0.7], 9), summary([0.6, 0.9], 9)],
        fedavg=[summary([0.4, 0.9], 19), summary([0.6, 0.8], 19)],
    ).rows
    local, fedavg = rows
    assert local.lead.interval.mean == 0
    assert (local.lead.wins, local.lead.losses) == (0, 0)
    assert local.cost_ratio == 1
    assert fedavg.lead.interval.mean == pytest.approx(0)
    assert (fedavg.lead.wins, fedavg.lead.losses) == (1, 2)
    assert fedavg.values["client_mean"].mean == pytest.approx(0.675)
    assert fedavg.values["client_mean"].std == pytest.approx(0.0353553, rel=1e-5)
    assert fedavg.cost_ratio == pytest.approx(2)
    assert fedavg.bytes_up_per_round == 50
    assert fedavg.values["best_on_validation"] is None
    assert fedavg.values["best_on_test_optimistic"].mean == 1
    assert fedavg.values["bottom_decile"].mean == pytest.approx(0.5)


def test_differences_are_paired_seed_by_seed_and_client_by_client():
    """fedavg − local = [[.1, .2], [.2, .3]]: mean .2, and its interval that of these numbers.

    Unpaired, the clients' own levels would hide it.
    """
    rows = table(
        local=[summary([0.1, 0.7], 1), summary([0.5, 0.3], 1)],
        fedavg=[summary([0.2, 0.9], 1), summary([0.7, 0.6], 1)],
    ).rows
    expected = mean_interval([[0.1, 0.2], [0.2, 0.3]])
    found = rows[1].lead.interval
    for key in ("mean", "low", "high"):
        assert getattr(found, key) == pytest.approx(getattr(expected, key))


def test_without_local_there_is_no_cost_ratio():
    (row,) = table(fedavg=[summary([0.5], 3)]).rows
    assert row.cost_ratio is None
    assert row.values["client_mean"].std == 0


def test_the_table_is_written_as_json(tmp_path):
    found = tabulate({"local": {4: summary([0.5], 3)}, "fedavg": {4: summary([0.25], 3)}})
    found.write(tmp_path / "comparison.json")
    saved = json.loads((tmp_path / "comparison.json").read_text())
    assert saved["seeds"] == [4]
    assert saved["reference"] == "local"
    assert saved["methods"]["fedavg"]["difference"] == {
        "mean": -0.25,
        "low": None,
        "high": None,
    }
