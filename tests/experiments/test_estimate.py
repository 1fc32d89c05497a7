"""How long experiments take, by hand."""

import pytest

from pfedseq.experiments.catalogue import Choice
from pfedseq.experiments.estimate import Pace, seconds_left, times_local
from pfedseq.experiments.reproduce import Reproduction


def wanted(out, name="table1"):
    return Reproduction.of(
        name,
        "lab",
        ["pacs"],
        [0, 1],
        out,
        ["run.rounds=10"],
        Choice(methods=("local", "pfedme")),
    )


def test_methods_take_as_many_times_local_as_in_the_paper():
    """Appendix C, DomainNet: pFedMe 989.8 s, Local 197.7 s."""
    assert times_local("pfedme", "domainnet") == pytest.approx(989.8 / 197.7)
    assert times_local("local", None) == 1


def test_only_what_is_missing_is_counted(tmp_path):
    """2 seeds × 10 rounds × (3 s · (1 + 5.0066) + 2 · 1 s); then Local's seed 0 is there."""
    paces = {"pacs": Pace(training_seconds=3.0, evaluate_seconds=1.0)}
    ratio = 989.8 / 197.7
    assert seconds_left(wanted(tmp_path), paces) == pytest.approx(20 * (3 * (1 + ratio) + 2))
    done = tmp_path / "runs" / "pacs" / "local" / "seed_0"
    done.mkdir(parents=True)
    (done / "summary.json").touch()
    assert seconds_left(wanted(tmp_path), paces) == pytest.approx(20 * (3 * (1 + ratio) + 2) - 40)
    one_round = wanted(tmp_path, "communication")
    assert seconds_left(one_round, paces) == pytest.approx(2 * (3 * (1 + ratio) + 2))


def test_data_that_are_not_at_hand_leave_it_open(tmp_path):
    assert seconds_left(wanted(tmp_path), {"pacs": Pace(missing="no images")}) is None
