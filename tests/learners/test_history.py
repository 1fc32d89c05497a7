"""The history's window, and what it holds of clients that were absent."""

import pytest
import torch

from pfedseq.learners.history import History, fill_gaps

THEN, NOW = torch.arange(6.0).view(3, 1, 2) + 1, -torch.ones(3, 1, 2)
PRESENT = torch.tensor([True, False, True])


@pytest.mark.parametrize(("policy", "share"), [("zero", 0.0), ("last", 1.0), ("decayed", 0.5)])
def test_an_absent_client_is_stood_in_for(policy, share):
    deltas = NOW * PRESENT[:, None, None]
    filled = fill_gaps(deltas, PRESENT, THEN, policy)
    assert torch.equal(filled[[0, 2]], NOW[[0, 2]])
    assert torch.equal(filled[1], share * THEN[1])
    assert fill_gaps(deltas, PRESENT, None, policy) is deltas, "nothing was there before"


@pytest.mark.parametrize("policy", ["zero", "last", "decayed"])
def test_where_all_are_present_no_policy_shows(policy):
    assert torch.equal(fill_gaps(NOW, torch.ones(3, dtype=torch.bool), THEN, policy), NOW)


def test_a_gap_that_lasts_fades():
    """Absent for three rounds: 1, then a half, a quarter, an eighth of the last update."""
    history = History(9)
    history.append(THEN)
    for _ in range(3):
        history.append(fill_gaps(torch.zeros_like(THEN), ~PRESENT, history.newest(), "decayed"))
    assert torch.equal(history.newest()[0], THEN[0] / 8)


def test_newest_is_the_last_one_appended():
    history = History(2)
    assert history.newest() is None
    for deltas in (THEN, NOW):
        history.append(deltas)
        assert torch.equal(history.newest(), deltas)


def test_known_are_the_clients_with_an_update_in_the_window():
    history = History(2)
    here = torch.zeros_like(THEN)
    here[1, 0, 1] = -0.5
    history.append(here)
    assert history.known().tolist() == [False, True, False]
    history.append(THEN * torch.tensor([1.0, 0.0, 0.0])[:, None, None])
    assert history.known().tolist() == [True, True, False]
    history.append(torch.zeros_like(THEN))
    assert history.known().tolist() == [True, False, False], "client 1's has left the window"


def test_forgetting_a_client_leaves_the_others_and_what_was_read_before():
    history = History(3)
    for value in (1.0, 2.0):
        history.append(torch.full((3, 1, 2), value))
    before, newest = history.window(), history.newest()
    history.forget(1)
    assert history.window()[0, 0].tolist() == [[1, 0, 1], [2, 0, 2]]
    assert history.known().tolist() == [True, False, True]
    assert before.eq(0).sum() == 0
    assert newest.eq(2).all()
    for value in (3.0, 4.0):
        history.append(torch.full((3, 1, 2), value))
    assert history.window()[0, 0].tolist() == [[2, 0, 2], [3, 3, 3], [4, 4, 4]]
