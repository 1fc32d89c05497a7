"""Clients that join and leave for good: every method that can follow keeps what the others have."""

import pytest
import torch

from pfedseq.config import make_config
from pfedseq.engines.conditions import FederationConfig
from pfedseq.engines.intake import Intake
from pfedseq.engines.local import LocalClients
from pfedseq.engines.roster import Roster, joined
from pfedseq.engines.rounds import run_rounds
from pfedseq.engines.wire import WireClients
from pfedseq.errors import InputError
from pfedseq.federation import Setup
from pfedseq.methods import METHODS
from pfedseq.runs.checkpoint import Checkpoints
from tests.engines.absences import QUICK, Passing, Silent, assert_same, memories
from tests.engines.digits_task import digits_federation
from tests.every_method import OPTIONS
from tests.toys import make_setup, quadratic_federation, random_centers

SIZES, ROUNDS = (4, 2, 3, 5, 6), 8
CENTERS = random_centers(len(SIZES), adapter_dim=10)
COMING_AND_GOING = FederationConfig(
    late_clients=0.2, late_round=4, leaving_clients=0.2, leaving_round=6
)
"""Client 4 joins in round 4, client 0 leaves before round 6."""
FOLLOWING = [name for name in METHODS if not METHODS[name].server.needs_everyone]
following = pytest.mark.parametrize("name", FOLLOWING)


def build(name, conditions=COMING_AND_GOING, engine=LocalClients, wrap=None, **more):
    """A server of those that are there in round 1, and all clients."""
    method = METHODS[name]
    config = method.config(lr=0.1, **(OPTIONS | QUICK).get(name, {}) | more)
    clients = engine(method.client, config, quadratic_federation(CENTERS, SIZES, num_batches=2))
    first = joined(clients.ids, 1, conditions)
    server = method.server(config, make_setup(CENTERS, [SIZES[i] for i in first], ROUNDS))
    return server, wrap(clients) if wrap else clients, clients


def run(server, clients, rounds=range(1, ROUNDS + 1), conditions=COMING_AND_GOING):
    outcomes = []
    run_rounds(server, clients, rounds, outcomes.append, conditions=conditions)
    return outcomes


@following
def test_who_is_asked_answers_and_is_evaluated(name):
    server, clients, engine = build(name)
    outcomes = run(server, clients)
    there = [(0, 1, 2, 3)] * 3 + [(0, 1, 2, 3, 4)] * 2 + [(1, 2, 3, 4)] * 3
    assert [o.members for o in outcomes] == there
    assert [tuple(sorted(o.evaluated)) for o in outcomes] == there
    first = 5 if name == "pefll" else 4  # described at the end of round 4
    for outcome, ids in zip(outcomes, there, strict=True):
        trained = [i for i in ids if i != 4 or outcome.t >= first]
        assert outcome.answered == tuple(trained)
    assert [(o.t, o.joined, o.left) for o in outcomes if o.joined or o.left] == [
        (4, (4,), ()),
        (6, (), (0,)),
    ]
    assert server.setup.num_examples == SIZES[1:]
    assert all(value.isfinite().all() for value in memories(server, engine).values())


@following
def test_who_leaves_takes_its_model_along(name):
    """That of the last round it was there."""
    server, clients, engine = build(name)
    run(server, clients, range(1, 6))
    down = server.payload(0)
    run(server, clients, range(6, 8))
    assert [len(site.saved) for site in engine.sites] == [1, 0, 0, 0, 0]
    kept = engine.sites[0].saved[0]
    client = engine.client(engine.config, engine.sites[0].task(5, "export"), engine.states.get(0))
    assert torch.equal(kept.adapter, client.personal(down).adapter)
    assert torch.equal(kept.head, client.personal(down).head)


@following
@pytest.mark.parametrize("cut", [3, 4, 6])
def test_a_run_that_is_cut_off_goes_on_alike(name, cut, tmp_path):
    """Before anyone has come, with the newcomer, and without the leaver."""
    whole = build(name)
    run(*whole[:2])
    server, clients, engine = build(name)
    run(server, clients, range(1, cut + 1))
    saved = Checkpoints(tmp_path, engine.states, {})
    saved.states.changed.update(engine.ids)
    saved.save(cut, server)
    server, clients, engine = build(name)
    assert Checkpoints(tmp_path, engine.states, {}).load(server, torch.device("cpu"), print) == cut
    run(server, clients, range(cut + 1, ROUNDS + 1))
    assert_same(memories(server, engine), memories(whole[0], whole[2]))


@pytest.mark.parametrize("name", ["local", "fedavg", "fedrep", "ditto", "fedala", "perada"])
def test_a_server_that_knows_no_client_makes_what_it_makes_of_absent_ones(name):
    """The same rounds with a place for everyone, in which those that are not there do not count."""
    server, clients, engine = build(name)
    run(server, clients)
    method = METHODS[name]
    other = LocalClients(method.client, engine.config, quadratic_federation(CENTERS, SIZES, 2))
    places = method.server(engine.config, make_setup(CENTERS, SIZES, ROUNDS))
    for t in range(1, ROUNDS + 1):
        places.run_round(t, Intake(Roster(other, places, COMING_AND_GOING)))
    assert_same(
        {k: v for k, v in memories(server, engine).items() if "seats" not in k and k != "informed"},
        {k: v for k, v in memories(places, other).items() if "seats" not in k and k != "informed"},
    )


@pytest.mark.parametrize("name", ["pfedseq", "pfedhn", "pefll"])
def test_the_wire_engine_follows_alike(name):
    local, wire = build(name), build(name, engine=WireClients)
    run(*local[:2])
    run(*wire[:2])
    assert_same(memories(local[0], local[2]), memories(wire[0], wire[2]))


def test_a_newcomer_to_pfedseq_gets_the_mean_adapter_then_a_calibration():
    """The learner is as wide as there are clients; the warm-up ends with round 2."""
    server, clients, _ = build("pfedseq")
    widths, is_mean = [], {}

    def after(outcome):
        widths.append((server.learner.model.num_clients, len(server.history.newest())))
        for place, i in enumerate(server.setup.clients):
            is_mean[outcome.t, i] = torch.equal(server.adapters[place], server.shared)

    run_rounds(server, clients, range(1, 4), after, conditions=COMING_AND_GOING)
    shared = server.shared
    server.reseat(range(4), {4: SIZES[4]})
    assert torch.equal(server.payload(4)["adapter"], shared), "what it trains from first"
    run_rounds(server, clients, range(4, ROUNDS + 1), after, conditions=COMING_AND_GOING)
    assert widths == [(4, 4)] * 3 + [(5, 5)] * 2 + [(4, 4)] * 3
    assert {key for key, mean in is_mean.items() if mean} == {
        (t, i) for t in (1, 2) for i in range(4)
    }


def test_pfedseqs_rows_stay_with_their_clients():
    """The first client leaves: of history, adapters and learner, row i + 1 is row i now."""
    server, clients, _ = build("pfedseq", FederationConfig())
    run(server, clients, range(1, 5))
    adapters, window = server.adapters, server.history.window()
    written = [block.out_proj.detach().clone() for block in server.learner.model.blocks]
    server.reseat([1, 2, 3, 4], {})
    assert torch.equal(server.adapters, adapters[1:])
    assert torch.equal(server.history.window(), window[..., 1:])
    for block, before in zip(server.learner.model.blocks, written, strict=True):
        assert torch.equal(block.out_proj, before[:, 1:])
    assert server.setup.clients == (1, 2, 3, 4)


class ComesBack(Passing):
    """Client 2 is silent in rounds 4 to 6."""

    def __init__(self, clients):
        super().__init__(clients)
        self.participants = lambda t: [i for i in self.ids if i != 2 or not 4 <= t < 7]


@following
def test_who_is_silent_for_long_has_left_and_comes_back_as_a_newcomer(name):
    conditions = FederationConfig(gone_after=2)
    server, clients, engine = build(name, conditions, wrap=ComesBack)
    outcomes = run(server, clients, conditions=conditions)
    assert [len(o.members) for o in outcomes] == [5] * 5 + [4] + [5] * 2
    assert [(o.t, o.joined, o.left) for o in outcomes if o.joined or o.left] == [
        (6, (), (2,)),
        (7, (2,), ()),
    ]
    assert outcomes[-1].members == (0, 1, 3, 4, 2)
    assert server.setup.num_examples == (4, 2, 5, 6, 3)
    assert not engine.sites[2].saved, "it could not be told"


def test_who_is_silent_for_less_keeps_its_place():
    conditions = FederationConfig(gone_after=4)
    kept, never = (build("pfedseq", c, wrap=ComesBack) for c in (conditions, FederationConfig()))
    run(*kept[:2], conditions=conditions)
    run(*never[:2], conditions=FederationConfig())
    assert_same(memories(kept[0], kept[2]), memories(never[0], never[2]))


class NobodyThere(Silent):
    def vanishes(self, t, i):
        return t > 1


def test_the_last_ones_of_all_keep_their_places():
    conditions = FederationConfig(gone_after=2)
    server, clients, _ = build("fedavg", conditions, wrap=NobodyThere)
    clients.members = lambda t, before: before
    outcomes = run(server, clients, range(1, 6), conditions)
    assert [len(o.members) for o in outcomes] == [5] * 5


def test_pfedhns_newcomer_has_the_mean_descriptor_and_the_others_keep_adams_memory():
    server, clients, _ = build("pfedhn", FederationConfig())
    run(server, clients, range(1, 4), FederationConfig())
    before = [p.detach().clone() for p in server.descriptors]
    remembered = [server.optimizer.state[p]["exp_avg"].clone() for p in server.descriptors]
    server.reseat([1, 2, 4], {3: 5})
    for place, former in enumerate((1, 2, 4)):
        assert torch.equal(server.descriptors[place], before[former])
        state = server.optimizer.state[server.descriptors[place]]
        assert torch.equal(state["exp_avg"], remembered[former])
    assert torch.equal(server.descriptors[3], torch.stack(before).mean(0))
    assert server.descriptors[3] not in server.optimizer.state
    moved = server.descriptors[3].detach().clone()
    run_rounds(server, clients, range(4, 5), lambda outcome: None)
    assert not torch.equal(server.descriptors[3], moved), "Adam moves it"


@pytest.mark.parametrize(("name", "change"), [("apple", "late_clients"), ("pfedla", "gone_after")])
def test_methods_that_need_everyone_say_so_at_the_start(name, change):
    value = {"late_clients": 0.2, "gone_after": 5}[change]
    with pytest.raises(InputError, match=f"{name} needs all clients from the first round"):
        make_config({"run": {"methods": ["fedavg", name]}, "federation": {change: value}})


@pytest.mark.parametrize(("learner_lr", "at_most"), [(1e-4, 0.01), (1e-3, 0.1)])
def test_of_two_blocks_the_others_lose_little(learner_lr, at_most):
    """Whoever of ten clients that read digits leaves after 20 rounds."""
    method, sites = METHODS["pfedseq"], digits_federation(10)
    sizes = {"warmup_rounds": 3, "max_sequence_length": 10, "learner_lr": learner_lr}
    config = method.config(lr=0.3, **sizes)
    examples = tuple(site.task(1, "train").num_examples for site in sites)
    setup = Setup(sites[0].task(1, "train").initial, examples, 20, seed=0)
    server = method.server(config, setup)
    clients = LocalClients(method.client, config, sites)
    for t in range(1, 21):
        server.run_round(t, clients)
    lost = []
    for gone in range(10):
        others = [i for i in range(10) if i != gone]
        window, known = server.history.window().clone(), server.history.known()
        window[..., gone], known[gone] = 0, False
        smaller, _ = server.learner.reseated(others, setup.reseated(others, {}), server.optimizer)
        with torch.no_grad():
            before = server.learner(window, known)[others]
            lost.append(float((smaller(window[..., others]) - before).norm() / before.norm()))
    print(f"learner_lr {learner_lr:g}: at most {100 * max(lost):.2f} % of the others' calibrations")
    assert 1e-4 < max(lost) < at_most
