"""What every registered method must do, whatever its formulas; and parity of the engines."""

import json

import pytest
import torch

from pfedseq.config import RunConfig
from pfedseq.engines.conditions import FederationConfig
from pfedseq.engines.intake import Intake
from pfedseq.engines.local import LocalClients
from pfedseq.engines.roster import Roster
from pfedseq.engines.rounds import run_rounds
from pfedseq.engines.wire import WireClients
from pfedseq.errors import InputError
from pfedseq.federation import Reply
from pfedseq.methods import METHODS, find_method
from pfedseq.params import Params
from pfedseq.runs.checkpoint import Checkpoints
from pfedseq.runs.ending import assess
from pfedseq.runs.records import summarise_round
from tests.every_method import OPTIONS, every_method
from tests.toys import make_setup, personal_models, quadratic_federation, random_centers

CENTERS = random_centers(3, adapter_dim=10)
SIZES = (4, 2, 3)
ROUNDS = 5


def build(name, engine=LocalClients, threads=1):
    method = METHODS[name]
    config = method.config(lr=0.1, **OPTIONS.get(name, {}))
    sites = quadratic_federation(CENTERS, SIZES, num_batches=2)
    clients = engine(method.client, config, sites, threads=threads)
    return method.server(config, make_setup(CENTERS, SIZES, ROUNDS)), clients


def run(server, clients, rounds):
    """Records without durations, and what the clients end with."""
    lines = []

    def keep(outcome):
        record = summarise_round("toy", outcome).to_json()
        lines.append(json.dumps({k: v for k, v in record.items() if not k.endswith("_seconds")}))

    run_rounds(server, clients, rounds, keep)
    down = {i: server.payload(i) for i in clients.ids}
    saved = personal_models(clients, rounds[-1], down)
    return lines, {i: phi.tensors() for i, phi in saved.items()}


def assert_same(a, b):
    assert a[0] == b[0]
    for i, tensors in a[1].items():
        for key, tensor in tensors.items():
            assert torch.equal(tensor, b[1][i][key]), (i, key)


@every_method
def test_engines_agree_bit_for_bit(name):
    rounds = range(1, ROUNDS + 1)
    local = run(*build(name), rounds)
    assert_same(local, run(*build(name, WireClients), rounds))
    assert_same(local, run(*build(name, LocalClients, threads=3), rounds))


@every_method
def test_resuming_changes_nothing(name, tmp_path):
    whole = run(*build(name), range(1, ROUNDS + 1))
    server, clients = build(name)
    first, _ = run(server, clients, range(1, 4))
    saved = Checkpoints(tmp_path, clients.states, {})
    saved.states.changed.update(clients.ids)
    saved.save(3, server)
    server, clients = build(name)
    resumed = Checkpoints(tmp_path, clients.states, {})
    t = resumed.load(server, torch.device("cpu"), pytest.fail)
    rest, final = run(server, clients, range(t + 1, ROUNDS + 1))
    assert_same(whole, (first + rest, final))


@every_method
def test_training_helps_and_numbers_stay_finite(name):
    server, clients = build(name)
    lines, _ = run(server, clients, range(1, ROUNDS + 1))
    losses = [sum(json.loads(line)["test"]["loss"]) for line in lines]
    assert losses[-1] < losses[0]


PERSONALISE_A_MEAN = {"pfedseq", "per_fedavg", "pfedme", "ditto", "perada", "fedala", "fedrod"}
BY_LORAS = {"feddpa", "floral"}
"""Whose mean is one of LoRAs, tested with each."""


@every_method
def test_at_the_end_each_client_is_asked_how_it_would_do_with_the_mean(name):
    """The mean adapter under the client's own head, or under the mean head where heads are sent."""
    server, clients = build(name)
    records = []

    def after(outcome):
        records.append(summarise_round(name, outcome))

    run_rounds(server, clients, range(1, ROUNDS + 1), after)
    section = RunConfig(rounds=ROUNDS)
    intake = Intake(Roster(clients, server, FederationConfig()))
    found = assess(server, intake, records, section)
    assert not intake.refused
    assert (found.scores.mean_adapter is not None) == (name in PERSONALISE_A_MEAN | BY_LORAS)
    assert found.scores.test == records[-1].scores.test
    scored = found.scores.with_mean_adapter() if name not in BY_LORAS else {}
    for i, accuracy in scored.items():
        mean = server.mean()
        head = mean["head"] if name != "pfedseq" else clients.states.get(i)["head"]
        task = clients.sites[i].task(ROUNDS, "evaluate_mean")
        assert accuracy == task.score(Params(mean["adapter"], head), "validation")["accuracy"]


@every_method
def test_personal_writes_no_state_and_keeps_the_shapes(name):
    server, clients = build(name)
    run(server, clients, range(1, 3))
    for i in clients.ids:
        before = clients.states.get(i)
        state = dict(before)
        client = clients.client(clients.config, clients.sites[i].task(3, "x"), state)
        phi = client.personal(server.payload(i))
        assert phi.adapter.shape == CENTERS[i].adapter.shape
        assert phi.head.shape == CENTERS[i].head.shape
        assert state.keys() == before.keys()
        assert all(state[k] is v for k, v in before.items())


@every_method
def test_a_client_does_not_write_into_what_it_received(name):
    """In process, a message is the server's own tensor: training must leave it as it was."""
    server, clients = build(name)
    server.run_round(1, clients)
    down = {i: server.payload(i) for i in clients.ids}
    before = {i: {k: v.clone() for k, v in tensors.items()} for i, tensors in down.items()}
    clients.call("train", 2, down)
    for i, tensors in down.items():
        assert all(torch.equal(tensors[k], before[i][k]) for k in tensors)


@every_method
def test_a_diverged_client_is_named(name):
    server, clients = build(name)
    replies = clients.call("train", 1, {i: server.payload(i) for i in clients.ids})
    if not replies[1].tensors:
        pytest.skip(f"{name} sends nothing up")
    spoiled = {k: torch.full_like(v, torch.nan) for k, v in replies[1].tensors.items()}
    with pytest.raises(InputError, match=r"client 1.*NaN"):
        server.update(1, replies | {1: Reply(spoiled)})


@every_method
def test_a_wrong_shape_is_named(name):
    server, clients = build(name)
    replies = clients.call("train", 1, {i: server.payload(i) for i in clients.ids})
    if not replies[2].tensors:
        pytest.skip(f"{name} sends nothing up")
    cut = {k: v[..., :-1] for k, v in replies[2].tensors.items()}
    with pytest.raises(InputError, match=r"client 2.*shape"):
        server.update(1, replies | {2: Reply(cut)})


@every_method
def test_every_method_explains_itself(name):
    method = METHODS[name]
    assert method.name == name
    assert method.summary
    module = __import__(f"pfedseq.methods.{name}", fromlist=["__doc__"])
    assert "Deviations:" in module.__doc__
    assert "Sent" in module.__doc__
    assert "Evaluated:" in module.__doc__
    for field_name, field in method.config.model_fields.items():
        assert field.description, f"{name}.{field_name} has no description"


def test_a_misspelt_method_is_answered_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'pfedseq'"):
        find_method("pFedSeqq")
    with pytest.raises(InputError, match=f"xyz.*: known are {', '.join(METHODS)}"):
        find_method("xyz")


class SomeClients(LocalClients):
    """Client 1 is left out of round 2; keeps who was asked for what."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.asked = []

    def participants(self, t):
        return [0, 2] if t == 2 else [0, 1, 2]

    def call(self, step, t, down):
        self.asked.append((step, t, sorted(down)))
        return super().call(step, t, down)


@every_method
def test_only_participants_train_and_everyone_is_tested(name):
    server, clients = build(name, SomeClients)
    lines, _ = run(server, clients, range(1, 4))
    trained = {t: ids for step, t, ids in clients.asked if step == "train"}
    assert trained == {1: [0, 1, 2], 2: [0, 2], 3: [0, 1, 2]}
    assert [json.loads(line)["clients"] for line in lines] == [[0, 1, 2]] * 3
