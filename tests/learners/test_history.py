"""The history's window, and what it holds of clients that were absent."""

import pytest
import torch

from pfedseq.learners.history import History, Lengths, bounded, stand_in
from pfedseq.learners.running_sums import RunningSums

THEN, NOW = torch.arange(6.0).view(3, 1, 2) + 1, -torch.ones(3, 1, 2)
PRESENT = torch.tensor([True, False, True])


@pytest.mark.parametrize(("policy", "share"), [("zero", 0.0), ("last", 1.0), ("decayed", 0.5)])
@pytest.mark.parametrize("kind", [History, RunningSums])
def test_an_absent_client_is_stood_in_for(kind, policy, share):
    history = kind(3, policy)
    history.append(THEN)
    history.append(NOW * PRESENT[:, None, None], PRESENT)
    assert torch.equal(history.newest()[[0, 2]], NOW[[0, 2]])
    assert torch.equal(history.newest()[1], share * THEN[1])


@pytest.mark.parametrize("policy", ["zero", "last", "decayed"])
def test_nothing_stands_in_for_who_is_absent_in_the_first_round(policy):
    history = History(3, policy)
    history.append(NOW * PRESENT[:, None, None], PRESENT)
    assert torch.equal(history.newest(), NOW * PRESENT[:, None, None])
    assert history.known().tolist() == PRESENT.tolist()


@pytest.mark.parametrize("policy", ["zero", "last", "decayed"])
def test_where_all_are_present_no_policy_shows(policy):
    history = History(2, policy)
    for deltas in (THEN, NOW):
        history.append(deltas, torch.ones(3, dtype=torch.bool))
    assert torch.equal(history.window(), torch.stack([THEN, NOW]).permute(2, 3, 0, 1))


def test_a_gap_that_lasts_fades():
    """Absent for three rounds: 1, then a half, a quarter, an eighth of the last update."""
    history = History(9, "decayed")
    history.append(THEN)
    for _ in range(3):
        history.append(torch.zeros_like(THEN), ~PRESENT)
    assert torch.equal(history.newest()[0], THEN[0] / 8)


@pytest.mark.parametrize("policy", ["zero", "last", "decayed"])
def test_what_is_not_stored_is_as_if_it_were(policy):
    """Against whole rounds, with random absences, over more rounds than the window has.

    Clients leave and join on the way, also while they are absent.
    """
    draw = torch.Generator().manual_seed(0)
    history, whole = History(4, policy), []
    for t in range(14):
        if t == 8:  # client 1 leaves, one comes
            history.reseat([0, 2, 3], 1)
            whole = [torch.cat([d[[0, 2, 3]], torch.zeros(1, 2, 3)]) for d in whole]
        present = torch.rand(4, generator=draw) < 0.4
        deltas = torch.randn(4, 2, 3, generator=draw) * present[:, None, None]
        history.append(deltas, present)
        if whole:
            deltas = torch.where(present[:, None, None], deltas, stand_in(whole[-1], policy))
        whole = [*whole, deltas][-4:]
        assert torch.equal(history.window(), torch.stack(whole).permute(2, 3, 0, 1))
        assert torch.equal(history.newest(), whole[-1])
        assert torch.equal(history.known(), (torch.stack(whole) != 0).flatten(2).any(2).any(0))
        rows = torch.tensor([0, 2])
        assert torch.equal(history.inputs(rows), history.window()[:, rows])
        again = History(4, policy)
        again.load_state_dict(history.state_dict())
        assert torch.equal(again.window(), history.window())


def test_only_what_clients_sent_is_stored():
    """Of ten rounds in which one of three takes part: a whole one, and a row of each other."""
    history = History(10)
    for t in range(12):
        present = torch.arange(3) == t % 3
        history.append(NOW * present[:, None, None], present)
    kept = [tensor for name, tensor in history.state_dict().items() if "places" not in name]
    assert [len(tensor) for tensor in kept] == [3] + [1] * 9


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


def test_an_update_is_cut_to_a_multiple_of_its_clients_usual_length():
    """Usual lengths 1 and 10: of (3, 4), which is 5 long, 1.5 is left for client 0, all for 1.

    Nothing is usual for client 2, which has sent no update yet.
    """
    deltas = torch.tensor([3.0, 4.0]).expand(3, 1, 2)
    usual = torch.tensor([[1.0], [10.0], [0.0]])
    cut = bounded(deltas, usual, 1.5)
    torch.testing.assert_close(cut[0, 0], torch.tensor([0.9, 1.2]))
    assert torch.equal(cut[1:], deltas[1:])
    assert torch.equal(bounded(torch.zeros(1, 1, 2), usual[:1], 1.5), torch.zeros(1, 1, 2))


def test_layers_are_bounded_one_by_one():
    deltas = torch.tensor([[[4.0], [4.0]]])  # one client, two layers
    assert bounded(deltas, torch.tensor([[1.0, 8.0]]), 2.0).flatten().tolist() == [2.0, 4.0]


def test_what_is_usual_is_the_median_of_the_rounds_with_an_update():
    """Client 0: 1, 100, 2 → 2, whatever the outlier. Client 1: absent, 4, 6 → the lower one, 4."""
    lengths = Lengths(3)
    for of_clients in ([9.0, 9.0], [1.0, 0.0], [100.0, 4.0], [2.0, 6.0]):
        lengths.append(torch.tensor(of_clients)[:, None])
    assert lengths.usual().flatten().tolist() == [2.0, 4.0], "of the last three rounds"
    lengths.reseat([1], 1)
    assert lengths.usual().flatten().tolist() == [4.0, 0.0], "nothing is known of the newcomer"
