"""One attacker among ten clients that read digits: what each defence saves of the nine others."""

from functools import cache

import pytest

from pfedseq.engines.conditions import FederationConfig
from pfedseq.engines.local import LocalClients
from pfedseq.engines.rounds import run_rounds
from pfedseq.federation import Reply, Setup
from pfedseq.methods import METHODS
from tests.engines.digits_task import CLASSES, digits_federation

NUM, ATTACKER, ROUNDS = 10, 2, 20
OPTIONS = {"pfedseq": {"warmup_rounds": 3, "max_sequence_length": 5, "learner_lr": 1e-3}}
UNDEFENDED = {"max_update_ratio": 1e9}


class Scaling:
    """An engine in which the attacker sends `scale` times its update."""

    def __init__(self, clients, scale):
        self.clients, self.scale, self.ids = clients, scale, clients.ids
        self.participants, self.members = clients.participants, clients.members

    def call(self, step, t, down):
        replies = self.clients.call(step, t, down)
        if step == "train":
            sent, back = down[ATTACKER], replies[ATTACKER]
            base = {k: 0 * v if k == "delta" else sent[k] for k, v in back.tensors.items()}
            scaled = {k: base[k] + self.scale * (v - base[k]) for k, v in back.tensors.items()}
            replies[ATTACKER] = Reply(scaled, back.metrics)
        return replies


@cache
def nine_others(name, *, flips=False, scale=1.0, **conditions):
    """Their mean test accuracy and loss after the last round, and how many rounds had a refusal."""
    method, wanted = METHODS[name], FederationConfig(**conditions)
    config = method.config(lr=0.3, **OPTIONS.get(name, {}))
    sites = digits_federation(NUM, flipped=(ATTACKER,) if flips else ())
    task = sites[0].task(1, "train")
    sizes = tuple(site.task(1, "train").num_examples for site in sites)
    robust = {"aggregation": wanted.aggregation, "trim": wanted.trim}
    setup = Setup(task.initial, sizes, ROUNDS, seed=0, num_classes=CLASSES, **robust)
    server = method.server(config, setup)
    clients = Scaling(LocalClients(method.client, config, sites), scale)
    outcomes = []
    run_rounds(server, clients, range(1, ROUNDS + 1), outcomes.append, ROUNDS, wanted)
    scores = [m for i, m in outcomes[-1].evaluated.items() if i != ATTACKER]
    means = (sum(m[key] for m in scores) / len(scores) for key in ("test_accuracy", "test_loss"))
    return *means, sum(ATTACKER in outcome.refused for outcome in outcomes)


def damage(name, **attack):
    """What the attack adds to the nine others' loss."""
    return nine_others(name, **UNDEFENDED, **attack)[1] - nine_others(name, **UNDEFENDED)[1]


DEFENCES = {
    "clipped": ({"clip_ratio": 1.0}, 0.5),
    "median": ({"aggregation": "median"}, 0.2),
    "trimmed": ({"aggregation": "trimmed_mean"}, 0.25),
}
"""What of a label flipper's damage may be left."""


@pytest.mark.parametrize("defence", DEFENCES)
def test_one_label_flipper_among_ten_is_held_off(defence):
    """It trains honestly on wrong labels: its updates are as long as the others'."""
    options, left = DEFENCES[defence]
    undefended = damage("fedavg", flips=True)
    assert undefended > 0.1
    assert damage("fedavg", flips=True, **options) < left * undefended
    assert damage("fedavg", flips=True, scale=5.0, **options) < left * undefended
    assert damage("fedavg", flips=True, scale=5.0) > 4 * undefended


@pytest.mark.parametrize("defence", DEFENCES)
def test_one_scaling_attacker_among_ten_is_held_off(defence):
    options, _ = DEFENCES[defence]
    assert nine_others("fedavg", scale=-20.0, **UNDEFENDED)[0] < 0.2
    assert nine_others("fedavg", scale=-20.0, **UNDEFENDED, **options)[0] > 0.9


def test_wrong_labels_stay_in_the_head_that_a_client_keeps_to_itself():
    """Nothing to defend: in pFedSeq the flipper's own head learns them, and its Δ is honest."""
    assert abs(damage("pfedseq", flips=True)) < 0.005


def test_only_clipping_protects_the_learners_input():
    """A robust mean keeps the attacker out of Eq. (1), not out of the learner's window."""
    attack = {"scale": -20.0, **UNDEFENDED}
    assert nine_others("pfedseq", **attack)[0] < 0.3
    assert nine_others("pfedseq", **attack, aggregation="median")[0] < 0.5
    assert nine_others("pfedseq", **attack, clip_ratio=1.0)[0] > 0.85


def test_an_absurd_attacker_is_refused_by_default():
    accuracy, _, refusals = nine_others("fedavg", scale=-1000.0)
    assert refusals == ROUNDS
    assert accuracy > 0.9
