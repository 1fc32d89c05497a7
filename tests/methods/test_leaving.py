"""A client of pFedSeq that leaves for good, and comes back as a newcomer."""

import copy

import pytest
import torch

from pfedseq.engines.attendance import IntermittentClients
from pfedseq.engines.conditions import FederationConfig
from pfedseq.engines.local import LocalClients
from pfedseq.federation import Setup
from pfedseq.learners.calibration import CalibrationLearner
from pfedseq.methods import METHODS
from pfedseq.runs.checkpoint import Checkpoints
from tests.engines.absences import CENTERS, SIZES, assert_same, memories
from tests.engines.digits_task import digits_federation
from tests.toys import make_setup, quadratic_federation

LEAVER, LEAVES, RETURNS, ROUNDS = 2, 4, 8, 9


class ComesBack(IntermittentClients):
    def participants(self, t):
        there = not LEAVES <= t < RETURNS
        return [i for i in self.ids if i != LEAVER or there]


def build(**options):
    method = METHODS["pfedseq"]
    sizes = {"warmup_rounds": 2, "max_sequence_length": 6, "learner_lr": 0.001}
    config = method.config(lr=0.1, **sizes, **options)
    engine = LocalClients(method.client, config, quadratic_federation(CENTERS, SIZES, 2))
    server = method.server(config, make_setup(CENTERS, SIZES, ROUNDS))
    return server, ComesBack(engine, FederationConfig(), 0), engine


def run(server, clients, rounds):
    for t in rounds:
        server.run_round(t, clients)


@pytest.mark.parametrize("gap", ["zero", "last", "decayed"])
def test_its_place_becomes_a_newcomers(gap):
    """Silent in rounds 4 and 5, it is given up with the end of round 5; it is back in round 8."""
    server, clients, _ = build(gone_after=2, history_gap=gap)
    initial = CalibrationLearner(server.config, server.setup)

    def place(learner):
        return torch.cat([p[where].flatten() for p, where in learner.model.of_client(LEAVER)])

    for t in range(1, ROUNDS + 1):
        server.run_round(t, clients)
        given_up = 5 <= t < RETURNS
        assert bool(server.history.known()[LEAVER]) != given_up
        is_mean = [torch.equal(adapter, server.shared) for adapter in server.adapters]
        assert is_mean == [t <= 2 or (given_up and i == LEAVER) for i in range(len(SIZES))]
        if t in (3, 4, 5):  # later the others' training may use what is free
            assert torch.equal(place(server.learner), place(initial)) == (t == 5)


def test_a_client_that_was_absent_for_less_keeps_its_place():
    kept = build(gone_after=RETURNS - LEAVES + 1)
    run(*kept[:2], range(1, ROUNDS + 1))
    never = build()
    run(*never[:2], range(1, ROUNDS + 1))
    a, b = memories(kept[0], kept[2]), memories(never[0], never[2])
    a.pop("silent_rounds"), b.pop("silent_rounds")
    assert_same(a, b)
    given_up = build(gone_after=RETURNS - LEAVES)
    run(*given_up[:2], range(1, ROUNDS + 1))
    assert not torch.equal(given_up[0].adapters, never[0].adapters)


@pytest.mark.parametrize("cut", [4, 5, 7])
def test_a_run_that_is_cut_off_meanwhile_goes_on_alike(cut, tmp_path):
    whole = build(gone_after=2)
    run(*whole[:2], range(1, ROUNDS + 1))
    server, clients, engine = build(gone_after=2)
    run(server, clients, range(1, cut + 1))
    saved = Checkpoints(tmp_path, engine.states, {})
    saved.states.changed.update(engine.ids)
    saved.save(cut, server)
    server, clients, engine = build(gone_after=2)
    assert Checkpoints(tmp_path, engine.states, {}).load(server, torch.device("cpu"), print) == cut
    run(server, clients, range(cut + 1, ROUNDS + 1))
    assert_same(memories(server, engine), memories(whole[0], whole[2]))


@pytest.mark.parametrize(("learner_lr", "at_most"), [(1e-4, 0.01), (1e-3, 0.1)])
def test_of_two_blocks_the_others_lose_little(learner_lr, at_most):
    """Whoever of ten clients that read digits leaves after 20 rounds."""
    method, sites = METHODS["pfedseq"], digits_federation(10)
    sizes = {"warmup_rounds": 3, "max_sequence_length": 10, "learner_lr": learner_lr}
    config = method.config(lr=0.3, **sizes)
    examples = tuple(site.task(1, "train").num_examples for site in sites)
    setup = Setup(sites[0].task(1, "train").initial, examples, 20, seed=0)
    server = method.server(config, setup)
    run(server, LocalClients(method.client, config, sites), range(1, 21))
    lost = []
    for gone in range(10):
        learner, others = copy.deepcopy(server.learner), [i for i in range(10) if i != gone]
        window = server.history.window().clone()
        window[..., gone] = 0
        with torch.no_grad():
            before = learner(window)[others]
            learner.start_anew(gone, CalibrationLearner(config, setup), learner.optimizer())
            lost.append(float((learner(window)[others] - before).norm() / before.norm()))
    print(f"learner_lr {learner_lr:g}: at most {100 * max(lost):.2f} % of the others' calibrations")
    assert 0 < max(lost) < at_most
