"""Sites evaluate a round's result and train for the next round in one exchange."""

import re

import pytest
import torch

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

from pfedseq import run
from pfedseq.config import dump_config, make_config
from pfedseq.deployment.audit import Audit
from pfedseq.deployment.envelope import Envelope
from pfedseq.engines.rounds import run_rounds
from pfedseq.engines.wire import decode, encode
from pfedseq.errors import InputError
from pfedseq.federation import Client, MethodConfig, Reply
from pfedseq.methods import METHODS
from pfedseq.runs.folder import RunFolder
from tests.deployment.configured_sites import (
    Killed,
    assert_same,
    at_sites,
    digits_sites,
    models,
    serve_here,
    without_seconds,
)
from tests.deployment.grid import InProcessGrid, connect, federation
from tests.every_method import OPTIONS, every_method
from tests.toys import make_setup, quadratic_federation, random_centers

CENTERS, SIZES, ROUNDS = random_centers(3, adapter_dim=10), (4, 2, 3), 4
SEVERAL_EXCHANGES = {"apple", "fedala", "pefll"}
"""Methods whose rounds do not begin with the training of what was evaluated."""


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("pfedseq.deployment.clients.LOOK_SECONDS", 0.0)


def asked(site):
    """The rounds that a site was asked to evaluate, and to train for, in order."""
    fields = [Envelope.of_records(message.content).fields for message in site.heard]
    of_round = {"evaluate": "round", "train": "evaluated"}  # a training may name a round, or 0
    evaluated = [f[of_round[f["step"]]] for f in fields if f["step"] in of_round]
    trained = [f["round"] for f in fields if f["step"] == "train"]
    return [t for t in evaluated if t], trained


def toys_over_flower(name, folder, rounds, **options):
    method = METHODS[name]
    config = method.config(lr=0.1, **OPTIONS.get(name, {}))
    toys = quadratic_federation(CENTERS, SIZES, num_batches=2)
    sites = federation(folder, method, config, toys)
    server = method.server(config, make_setup(CENTERS, SIZES, rounds))
    outcomes = []
    clients = connect(InProcessGrid(sites), 3)
    run_rounds(server, clients, range(1, rounds + 1), outcomes.append, **options)
    return sites, outcomes


@every_method
def test_a_round_is_one_exchange_and_nobody_is_scored_or_trained_twice(name, tmp_path):
    sites, outcomes = toys_over_flower(name, tmp_path, ROUNDS)
    assert all(set(outcome.evaluated) == {0, 1, 2} for outcome in outcomes)
    for site in sites:
        if name not in SEVERAL_EXCHANGES:
            assert asked(site) == ([1, 2, 3, 4], [1, 2, 3, 4])
            assert len(site.heard) == 1 + ROUNDS + 1, "a hello, the rounds, the last evaluation"


def test_rounds_without_an_evaluation_are_trained_by_themselves(tmp_path):
    sites, outcomes = toys_over_flower("fedavg", tmp_path, 5, evaluate_every=2)
    assert [bool(outcome.evaluated) for outcome in outcomes] == [False, True, False, True, True]
    for site in sites:
        fields = [Envelope.of_records(message.content).fields for message in site.heard]
        steps = [(f["step"], f["round"], f["evaluated"]) for f in fields[1:]]
        assert steps == [
            ("train", 1, 0), ("train", 2, 0), ("train", 3, 2), ("train", 4, 0), ("train", 5, 4),
            ("evaluate", 5, 0),
        ]  # fmt: skip


class Adding(Client):
    """Adds what it is sent to its memory; its reply is the sum."""

    def train(self, down):
        if "fail" in down:
            raise InputError("out of paper")
        self.state["sum"] = self.state.get("sum", torch.zeros(())) + down["by"]
        return Reply({"sum": self.state["sum"]})

    def personal(self, down):
        return self.task.initial


class AddingMethod:
    client = Adding


@pytest.fixture
def adding(tmp_path):
    toys = quadratic_federation(CENTERS, SIZES)
    return federation(tmp_path, AddingMethod, MethodConfig(), toys)


def by(*values):
    return {i: {"by": torch.tensor(float(value))} for i, value in enumerate(values)}


def sums(replies):
    return {i: int(reply.tensors["sum"]) for i, reply in replies.items()}


def test_replies_are_used_for_the_same_message_alone(adding):
    """Sites that are sent something else train again, from what they remember of round 1."""
    clients = connect(InProcessGrid(adding), 3)
    assert sums(clients.call("train", 1, by(1, 1, 1))) == {0: 1, 1: 1, 2: 1}
    clients.announce_training(2, by(10, 10))
    assert set(clients.call("evaluate", 1, by(10, 10, 10))) == {0, 1, 2}
    assert [len(site.heard) for site in adding] == [3, 3, 3]
    assert sums(clients.call("train", 2, by(10, 100, 10))) == {0: 11, 1: 101, 2: 11}
    assert [len(site.heard) for site in adding] == [3, 4, 4]
    assert sums(clients.call("train", 3, by(1, 1, 1))) == {0: 12, 1: 102, 2: 12}


def test_replies_are_used_for_the_announced_round_alone(adding):
    clients = connect(InProcessGrid(adding), 3)
    clients.announce_training(3, by(1, 1, 1))
    clients.call("evaluate", 1, by(1, 1, 1))
    assert asked(adding[0]) == ([1], []), "the round after the next is not sent ahead"
    clients.announce_training(2, by(1, 1, 1))
    clients.call("evaluate", 1, by(1, 1, 1))
    clients.call("train", 3, by(1, 1, 1))
    assert asked(adding[0])[1] == [2, 3]


def test_scores_count_where_the_training_fails(adding, caplog):
    clients = connect(InProcessGrid(adding), 3)
    down = by(1, 1, 1)
    down[1]["fail"] = torch.zeros(())
    clients.announce_training(2, down)
    scores = clients.call("evaluate", 1, down)
    assert set(scores) == {0, 1, 2}
    assert all("test_loss" in reply.metrics for reply in scores.values())
    assert all(not reply.tensors for reply in scores.values())
    replies = clients.call("train", 2, down)
    assert sums(replies) == {0: 1, 2: 1}
    assert not any(name.startswith("evaluated") for name in replies[0].metrics)
    assert "out of paper" in clients.roll.problems["b"]


def test_who_is_silent_has_no_score_and_no_update_and_is_not_waited_for_again(adding):
    clients = connect(InProcessGrid(adding), 3, seconds=0.1)
    notes = []
    clients.roll.note = lambda event, site, **more: notes.append(
        (event, site, more["round"], more["step"])
    )
    adding[1].faults = ["late"]
    clients.announce_training(2, by(1, 1, 1))
    assert set(clients.call("evaluate", 1, by(1, 1, 1))) == {0, 2}
    assert sums(clients.call("train", 2, by(1, 1, 1))) == {0: 1, 2: 1}
    assert len(adding[1].heard) == 2, "a hello and the message of both"
    assert [note for note in notes if note[1] == "b"] == [
        ("silent", "b", 1, "evaluate"),
        ("silent", "b", 2, "train"),
    ]
    assert sums(clients.call("train", 3, by(1, 1, 1))) == {0: 2, 1: 2, 2: 2}, "its training is kept"


DIGITS = {
    "run": {"methods": ["fedrep"], "rounds": 3},
    "data": {"name": "digits", "num_clients": 2, "max_images_per_client": 24},
    "engine": {"clients_per_pass": 1, "device": "cpu"},
    "flower": {"answer_seconds": 60, "start_seconds": 60},
}


def written(folder, values):
    (folder / "run.toml").write_text(dump_config(make_config(values)))
    return folder / "run.toml"


def assert_as_on_one_machine(values, folder, out):
    alone = folder / "alone"
    run(make_config(values), alone)
    assert without_seconds(out) == without_seconds(alone)
    method = values["run"]["methods"][0]
    there = models(*sorted((alone / "adapters" / method).iterdir())[:2])
    assert_same(at_sites(folder, out, method), there)


class Dying(InProcessGrid):
    """The server dies once the sites have computed their answers to its n-th message."""

    def __init__(self, sites, exchanges):
        super().__init__(sites)
        self.exchanges = exchanges

    def push_messages(self, messages):
        ids = super().push_messages(messages)
        self.exchanges -= messages[0].metadata.message_type != "query"
        if self.exchanges == 0:
            raise Killed
        return ids


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("exchanges", [1, 2, 3, 4])
def test_a_server_that_dies_in_any_exchange_ends_with_the_same_bits(exchanges, every, tmp_path):
    """Private heads are what a site might train twice."""
    values = {**DIGITS, "run": {**DIGITS["run"], "checkpoint_every": every}}
    sites, out = digits_sites(tmp_path), tmp_path / "out"
    with pytest.raises(Killed):
        serve_here(None, out, written(tmp_path, values), grid=Dying(sites, exchanges))
    serve_here(sites, out, None)
    assert_as_on_one_machine(values, tmp_path, out)


@pytest.mark.parametrize(
    "values",
    [
        {"federation": {"dropout": 0.4}},
        {"federation": {"participation": 0.5}},
        {
            "run": {"methods": ["fedavg"], "rounds": 4},
            "training": {"optimizer": "adamw", "optimizer_state": "average", "lr": 0.01},
        },
    ],
    ids=["dropout", "participation", "averaged moments"],
)
def test_absences_and_moments_are_those_of_one_machine(values, tmp_path):
    values = {**DIGITS, "run": {**DIGITS["run"], "rounds": 5}, **values}
    serve_here(digits_sites(tmp_path), tmp_path / "out", written(tmp_path, values))
    assert_as_on_one_machine(values, tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    "options", [{"patience": 1}, {"keep": "best_on_validation"}], ids=["patience", "best round"]
)
def test_no_site_trains_before_it_is_known_whether_the_run_goes_on(options, tmp_path):
    values = {**DIGITS, "run": {**DIGITS["run"], "rounds": 6, **options}}
    values["training"] = {"lr": 1e-9, "head_lr": 1e-9}  # nothing improves
    sites, out = digits_sites(tmp_path), tmp_path / "out"
    serve_here(sites, out, written(tmp_path, values))
    rounds = [record.round for record in RunFolder(out).records()]
    assert (len(rounds) < 6) == ("patience" in options)
    for site in sites:
        assert asked(site) == (rounds, rounds)
        fields = [Envelope.of_records(message.content).fields for message in site.heard]
        assert not any(f["evaluated"] for f in fields)
    assert_as_on_one_machine(values, tmp_path, out)


def spoiled(records, change):
    """A site's reply with other scores, whether they come with a training or alone."""
    envelope = Envelope.of_records(records)
    reply = decode(envelope.payload)
    metrics = {}
    for name, value in reply.metrics.items():
        said = change(name.removeprefix("evaluated/"), value)
        if said is not None:
            metrics[name] = said
    return Envelope(envelope.fields, encode(reply.tensors, metrics)).to_records()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("test_loss", float("nan"), "its test_loss is nan"),
        ("test_loss", None, "does not report test_loss"),
        ("test_accuracy", 1e9, r"its test_accuracy is 1e\+09, which cannot be"),
    ],
)
def test_scores_that_cannot_be_cost_a_site_its_score_and_nobody_its_training(
    name, value, says, tmp_path
):
    sites, out, told = digits_sites(tmp_path), tmp_path / "out", []
    honest = sites[1].reply
    sites[1].reply = lambda asked: spoiled(
        honest(asked), lambda metric, said: value if metric == name else said
    )
    serve_here(sites, out, written(tmp_path, DIGITS), told)
    records = RunFolder(out).records()
    assert [record.scores.clients for record in records] == [(0,)] * 3
    assert all(record.answered == 2 for record in records), "its training counts"
    assert any(re.search(says, sentence) for sentence in told)
    refused = [e for e in Audit(out).events() if e["event"] == "refused"]
    assert {(e["site"], e["round"], e["step"]) for e in refused} == {
        ("1", 1, "evaluate"), ("1", 2, "evaluate"), ("1", 3, "evaluate"), ("1", 3, "assess"),
    }  # fmt: skip
    assert all(re.search(says, e["reason"]) for e in refused)
