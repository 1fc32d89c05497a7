"""The comparison table by hand, and that finished runs are not run again."""

import json

import pytest

from pfedseq.config import make_config
from pfedseq.errors import InputError
from pfedseq.runs import sweep

QUICK = {
    "run": {"rounds": 2, "name": "quick"},
    "data": {"name": "digits", "num_clients": 2, "max_images_per_client": 20},
    "training": {"lr": 0.02, "batch_size": 8},
}


def summary(accuracies, seconds, rounds=2):
    return {
        "rounds": rounds,
        "client_mean": sum(accuracies) / len(accuracies),
        "worst_client": min(accuracies),
        "sample_weighted": accuracies[0],
        "test_accuracy": accuracies,
        "client_seconds": seconds,
        "server_seconds": 1.0,
        "bytes_up": 100,
        "bytes_down": 60,
    }


def test_table_by_hand():
    """Two seeds, two clients. Against the first method, client by client and seed by seed:

    fedavg − local = (0.4 − 0.5, 0.9 − 0.7; 0.6 − 0.6, 0.8 − 0.9) = (−0.1, 0.2, 0, −0.1):
    mean 0, one better and two worse. Means by seed .65 and .7: mean .675, std √(2·.025²) = .0354.
    Seconds a round: local (9 + 1 + 9 + 1) / 4 = 5, fedavg (19 + 1 + 19 + 1) / 4 = 10: ratio 2.
    """
    rows = sweep.tabulate(
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


def test_without_local_there_is_no_cost_ratio():
    (row,) = sweep.tabulate({"fedavg": [summary([0.5], 3)]})
    assert row.cost_ratio is None
    assert row.client_mean.std == 0


def test_runs_share_partitions_and_are_not_repeated(tmp_path):
    config = make_config(QUICK)
    started = []

    def announce(method, seed, config):
        started.append((method, seed))

    first = sweep.compare(config, ["local", "fedavg"], [0, 1], tmp_path, announce)
    assert started == [("local", 0), ("fedavg", 0), ("local", 1), ("fedavg", 1)]
    again = sweep.compare(config, ["local", "fedavg"], [0, 1], tmp_path, announce)
    assert len(started) == 4
    assert again == first
    sweep.compare(config, ["local", "fedavg", "fedrep"], [0], tmp_path, announce)
    assert started[4:] == [("fedrep", 0)]
    saved = json.loads((tmp_path / "comparison.json").read_text())
    assert saved["reference"] == "local"
    assert set(saved["methods"]) == {"local", "fedavg", "fedrep"}


def test_other_options_do_not_mix_into_one_table(tmp_path):
    sweep.compare(make_config(QUICK), ["local"], [0], tmp_path)
    with pytest.raises(InputError, match="other options"):
        sweep.compare(make_config(QUICK, ["training.lr=0.1"]), ["local"], [0], tmp_path)
