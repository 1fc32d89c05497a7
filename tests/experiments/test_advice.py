"""Which methods are recommended for which clients."""

from itertools import combinations

import numpy as np
import pytest
from typer.testing import CliRunner

from pfedseq.cli import app
from pfedseq.config import make_config
from pfedseq.data.loading import load_data
from pfedseq.experiments import advice
from pfedseq.experiments.advice import Situation, advise, sentences, situation_of
from pfedseq.methods import METHODS


def situation(**data):
    config = make_config({"data": {"name": "digits", "num_clients": 4, **data}})
    return situation_of(load_data(config.data, 0), 1.0)


def test_the_overlap_of_labels_by_hand():
    """Clients 0 and 1 hold the halves of two classes alike, client 2 another class alone."""

    class Examples:
        labels = np.array([0, 1, 0, 1, 2, 2])
        class_names = ("a", "b", "c")

    class Client:
        def __init__(self, *train):
            self.train = np.array(train)

    class Data:
        examples = Examples()
        clients = (Client(0, 1), Client(2, 3), Client(4, 5))

    found = situation_of(Data(), 0.3)
    assert found == Situation(3, 2.0, pytest.approx(1 / 3), 0.3)


def test_the_overlap_is_the_mean_over_pairs():
    shares = np.random.default_rng(0).dirichlet([0.3] * 4, size=7)
    pairs = [np.minimum(one, other).sum() for one, other in combinations(shares, 2)]
    assert advice._overlap(shares) == pytest.approx(np.mean(pairs), rel=1e-12)
    assert advice._overlap(shares[:1]) == 1.0


def test_label_skew_is_seen():
    alike = situation(partition="iid")
    apart = situation(partition="pathological", num_clients=5)
    assert alike.overlap > 0.75
    assert apart.overlap < 0.35


def names(clients=10, examples=200.0, overlap=0.5, participation=1.0):
    found = advise(Situation(clients, examples, overlap, participation))
    assert found
    assert all(rule.reason for rule in found)
    return [name for rule in found for name in rule.methods]


def test_each_rule_speaks_where_it_should_and_only_there():
    assert names(examples=30, overlap=0.9)[0] == "fedavg"
    assert "fedavg" not in names(examples=30, overlap=0.2)
    assert names(overlap=0.2)[0] == "pfedseq"
    assert "fedrod" in names(overlap=0.2)
    assert "fedrod" not in names(overlap=0.9)
    assert names(examples=5000) == [*names(), "pfedseq", "pefll", "fedrep"]
    some, few = names(34, overlap=0.9, participation=0.3), names(33, participation=0.3)
    assert some[-5:-2] == ["pfedseq", "fedrep", "fedavgm"]
    assert few[-3:] == ["pefll", "pfedhn", "fedrep"]
    assert "fedavgm" not in few
    assert "ghbm" not in few
    assert few[:-3] == names(33)
    assert "fedavgm" not in names(clients=200)
    assert "ghbm" in some
    assert "ghbm" in names(clients=200)
    assert "ghbm" not in names()
    assert "apple" in names(clients=3)
    everything = {name for o in (0.1, 0.5, 0.9) for name in names(2, 20, o, 0.1)}
    assert everything <= set(METHODS)


def test_dialogues_have_no_classes_to_speak_of():
    """Nor have they heads: methods that need one are left out of every rule."""
    done = CliRunner().invoke(app, ["methods", "--advise", "llm-demo"])
    assert done.exit_code == 0, done.output
    assert "class" not in done.output
    assert "label" not in done.output
    many = [*advise(Situation(3, 5000.0, None, 0.2)), *advise(Situation(200, 5000.0, None, 0.2))]
    found = {name for advice in many for name in advice.methods}
    assert {"pfedseq", "local", "ghbm", "apple"} <= found
    assert not any(METHODS[name].needs_head for name in found)
    assert all(advice.methods for advice in many)
    assert len(sentences(Situation(3, 5000.0, None, 0.2))) == 2


def test_the_command_says_what_it_saw_and_what_to_type():
    done = CliRunner().invoke(app, ["methods", "--advise", "demo"])
    assert done.exit_code == 0, done.output
    assert "10 clients" in done.output
    assert "pfedseq compare CONFIG --methods" in done.output
