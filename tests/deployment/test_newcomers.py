"""Sites that come once a run has begun, and sites that leave it: on an in-process grid."""

import pytest
import torch

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

from pfedseq.deployment.envelope import Envelope
from pfedseq.engines.conditions import FederationConfig
from pfedseq.engines.local import LocalClients
from pfedseq.engines.rounds import run_rounds
from pfedseq.engines.wire import decode
from pfedseq.methods import METHODS
from pfedseq.runs.checkpoint import server_state
from tests.deployment.grid import InProcessGrid, connect, federation
from tests.engines.absences import assert_same
from tests.every_method import OPTIONS
from tests.toys import make_setup, quadratic_federation, random_centers

CENTERS, SIZES, ROUNDS, COMES = random_centers(3, adapter_dim=10), (4, 2, 3), 6, 4


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("pfedseq.deployment.clients.LOOK_SECONDS", 0.0)


def start(name):
    """A method's server for the first two of three sites, its config and the toys."""
    method = METHODS[name]
    config = method.config(lr=0.1, **OPTIONS.get(name, {}))
    toys = quadratic_federation(CENTERS, SIZES, num_batches=2)
    return method.server(config, make_setup(CENTERS, SIZES[:2], ROUNDS)), config, toys


def let_anyone_in(guest):
    """All that a run would check is left out."""


def come(grid, sites, clients):
    """The third site's node connects, and has said hello by the time the next round begins."""
    grid.sites = sites
    while not clients.roll.strangers:
        clients.roll.look()


@pytest.mark.parametrize("name", ["pfedseq", "fedavg", "fedrep", "local"])
def test_a_site_that_comes_later_is_let_in_as_a_simulated_one_is(name, tmp_path):
    """Bit for bit the run in one process whose last client joins in that round."""
    server, config, toys = start(name)
    sites = federation(tmp_path, METHODS[name], config, toys)
    grid = InProcessGrid(sites[:2])
    clients = connect(grid, 2, admit=let_anyone_in)
    outcomes = []

    def after(outcome):
        outcomes.append(outcome)
        if outcome.t == COMES - 1:
            come(grid, sites, clients)

    run_rounds(server, clients, range(1, ROUNDS + 1), after)
    assert [o.members for o in outcomes] == [(0, 1)] * 3 + [(0, 1, 2)] * 3
    assert [o.answered for o in outcomes] == [o.members for o in outcomes]
    assert outcomes[COMES - 1].joined == (2,)
    assert clients.names == ("a", "b", "c")
    assert server.setup.num_examples == SIZES

    late = FederationConfig(late_clients=0.34, late_round=COMES)
    simulated, config, toys = start(name)
    engine = LocalClients(METHODS[name].client, config, toys)
    alone = []
    run_rounds(simulated, engine, range(1, ROUNDS + 1), alone.append, conditions=late)
    assert_same(server_state(server), server_state(simulated))
    for one, other in zip(outcomes, alone, strict=True):
        assert {i: m["test_loss"] for i, m in one.evaluated.items()} == {
            i: m["test_loss"] for i, m in other.evaluated.items()
        }


def test_a_newcomer_is_sent_the_mean_adapter_then_a_calibrated_one(tmp_path):
    """What arrives at the third site in training, against the mean of the round before."""
    server, config, toys = start("pfedseq")
    sites = federation(tmp_path, METHODS["pfedseq"], config, toys)
    grid = InProcessGrid(sites[:2])
    clients = connect(grid, 2, admit=let_anyone_in)
    means = {}

    def after(outcome):
        means[outcome.t] = server.mean()["adapter"]
        if outcome.t == COMES - 1:
            come(grid, sites, clients)

    run_rounds(server, clients, range(1, ROUNDS + 1), after)
    sent = {}
    for message in sites[2].heard:
        envelope = Envelope.of_records(message.content)
        if envelope.fields["step"] == "train":
            sent[envelope.fields["round"]] = decode(envelope.payload).tensors["adapter"]
    is_mean = {t: torch.equal(adapter, means[t - 1]) for t, adapter in sent.items()}
    assert is_mean == {COMES: True, COMES + 1: False, COMES + 2: False}
    assert sites[2].heard[0].metadata.message_type == "query", "first of all it said hello"


def test_a_site_that_is_silent_for_long_is_not_waited_for_and_may_come_back(tmp_path):
    server, config, toys = start("pfedseq")
    sites = federation(tmp_path, METHODS["pfedseq"], config, toys[:2])
    clients = connect(InProcessGrid(sites), 2, seconds=0.3)
    outcomes = []

    def after(outcome):
        outcomes.append(outcome)
        if outcome.t == 1:  # it has trained for round 2 by then
            sites[0].online = False
        if outcome.t == 5:
            sites[0].restart(number=555)
            while "a" not in clients.roll.look():
                pass

    conditions = FederationConfig(gone_after=2)
    run_rounds(server, clients, range(1, 8), after, conditions=conditions)
    assert [o.members for o in outcomes] == [(0, 1)] * 4 + [(1,)] + [(1, 0)] * 2
    assert [o.answered for o in outcomes] == [(0, 1)] * 2 + [(1,)] * 3 + [(0, 1)] * 2
    assert server.learner.model.num_clients == 2
