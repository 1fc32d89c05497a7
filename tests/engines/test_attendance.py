"""Clients that come and go: who is there follows from the seed, and who is not does not count."""

from dataclasses import replace

import pytest
import torch

from pfedseq.engines.conditions import FederationConfig
from pfedseq.engines.intake import Intake
from pfedseq.engines.roster import Roster
from tests.engines.absences import (
    CENTERS,
    ROUNDS,
    Passing,
    Silent,
    assert_same,
    build,
    memories,
    play,
)
from tests.every_method import every_method


class Without(Passing):
    """Client 2 is never there."""

    def __init__(self, clients):
        super().__init__(clients)
        self.participants = lambda t: [i for i in self.ids if i != 2]


def roster(name="fedavg", seed=0, **conditions):
    server, clients, _ = build(name)
    server.setup = replace(server.setup, seed=seed)
    return Roster(clients, server, FederationConfig(**conditions))


OTHER_DATA = [*CENTERS[:2], 7 * CENTERS[2], *CENTERS[3:]]
"""Those of client 2 are others."""


@every_method
@pytest.mark.parametrize("wrap", [Without, Silent])
def test_the_data_of_an_absent_client_cannot_influence_anything(name, wrap):
    a = play(name, FederationConfig(), wrap=wrap)
    b = play(name, FederationConfig(), wrap=wrap, centers=OTHER_DATA)
    assert_same(memories(*a[:2]), memories(*b[:2]))
    assert not a[1].states.get(2), "it has done nothing at all"
    assert [outcome.answered for outcome in a[2]] == [(0, 1, 3)] * ROUNDS
    for one, two in zip(a[2], b[2], strict=True):
        for i in (0, 1, 3):
            assert one.evaluated[i]["test_loss"] == two.evaluated[i]["test_loss"]


@every_method
def test_a_present_client_does_count(name):
    """The same comparison with client 2 there must show a difference, or it shows nothing."""
    a = memories(*play(name, FederationConfig())[:2])
    b = memories(*play(name, FederationConfig(), centers=OTHER_DATA)[:2])
    assert any(not torch.equal(a[key], b[key]) for key in a)


@every_method
def test_an_all_present_run_is_what_it_always_was(name):
    server, _, engine = build(name)
    for t in range(1, ROUNDS + 1):
        server.run_round(t, engine)
    there = play(name, FederationConfig())
    alone, played = memories(server, engine), memories(*there[:2])
    for memory in (alone, played):  # noted by the intake, which the first goes without
        del memory["seats/update_lengths"]
    assert_same(alone, played)


@every_method
def test_every_method_lives_with_few_clients_that_often_vanish(name):
    """Rounds without any answer among them; numbers stay finite and training goes on."""
    conditions = FederationConfig(participation=0.5, dropout=0.6)
    server, engine, outcomes = play(name, conditions, rounds=12)
    answered = [len(outcome.answered) for outcome in outcomes]
    assert min(answered) == 0
    assert 0 < max(answered) <= 2
    assert all(value.isfinite().all() for value in memories(server, engine).values())
    losses = [sum(m["test_loss"] for m in o.evaluated.values()) for o in outcomes]
    assert losses[-1] < losses[0]


@every_method
def test_a_round_without_answers_changes_nothing(name):
    server, clients, engine = build(name, wrap=Silent)
    server.run_round(1, clients)
    before = {k: v.clone() for k, v in memories(server, engine).items()}
    clients.vanishes = lambda t, i: True
    server.run_round(2, clients)
    after = memories(server, engine)
    still = {k for k in before if k not in ("informed", "described")}  # who must be told again
    assert all(torch.equal(before[k], after[k]) for k in still)


def test_participants_are_a_share_fixed_by_seed_and_round():
    clients = roster(participation=0.5)
    chosen = [tuple(clients.participants(t)) for t in range(1, 60)]
    assert all(len(ids) == 2 and list(ids) == sorted(set(ids)) for ids in chosen)
    assert len(set(chosen)) == 6, "every pair of four comes"
    assert chosen == [tuple(clients.participants(t)) for t in range(1, 60)]
    clients = roster(participation=0.5, seed=1)
    assert chosen != [tuple(clients.participants(t)) for t in range(1, 60)]
    clients = roster(participation=0.01)
    assert len(clients.participants(1)) == 1


def test_dropout_has_its_chance_and_its_seed():
    clients = roster(dropout=0.3)
    gone = [clients.vanishes(t, i) for t in range(500) for i in range(4)]
    assert sum(gone) / len(gone) == pytest.approx(0.3, abs=0.04)
    assert gone == [clients.vanishes(t, i) for t in range(500) for i in range(4)]


def test_late_clients_are_not_asked_before_their_round():
    clients = roster(late_clients=0.25, late_round=3)
    assert [list(clients.participants(t)) for t in (1, 2, 3)] == [[0, 1, 2]] * 2 + [[0, 1, 2, 3]]


def test_clients_that_leave_are_not_asked_from_their_round_on():
    clients = roster(leaving_clients=0.25, leaving_round=3)
    assert [list(clients.participants(t)) for t in (1, 2, 3)] == [[0, 1, 2, 3]] * 2 + [[1, 2, 3]]
    both = {"late_clients": 0.5, "late_round": 9, "leaving_clients": 0.5, "leaving_round": 3}
    clients = roster(**both)
    asked = [list(clients.participants(t)) for t in (2, 3, 9)]
    assert asked == [[0, 1], [0], [2, 3]], "somebody is always there"


def test_a_newcomer_to_pfedseq_gets_the_mean_adapter_then_a_calibration():
    """Client 3 joins in round 5; the warm-up ends with round 2."""
    clients = Intake(roster("pfedseq", late_clients=0.25, late_round=5))
    server = clients.roster.server
    for t in range(1, 7):
        before = server.adapters.clone()
        server.run_round(t, clients)
        deltas = server.history.newest()
        present = torch.tensor([True, True, True, t >= 5])
        shared = server.setup.aggregate(before + deltas, present)
        assert torch.equal(server.mean()["adapter"], shared)
        assert torch.equal(server.adapters[3], shared) == (t < 5)
        assert torch.equal(server.adapters[0], shared) == (t <= 2)
