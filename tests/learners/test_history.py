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


def test_who_left_is_forgotten_and_who_came_is_unknown():
    """Client 1 leaves, another comes: rows 0 and 2 move up, and the length stays bounded."""
    history = History(3)
    for value in (1.0, 2.0):
        history.append(value * torch.tensor([1.0, 10.0, 100.0]).view(3, 1, 1).expand(3, 1, 2))
    history.reseat([0, 2], newcomers=1)
    assert history.window()[0, 1].tolist() == [[1, 100, 0], [2, 200, 0]]
    assert history.known().tolist() == [True, True, False]
    for value in (3.0, 4.0):
        history.append(torch.full((3, 1, 2), value))
    assert history.window()[0, 1].tolist() == [[2, 200, 0], [3, 3, 3], [4, 4, 4]]
