"""Bad updates: refused before the server sees them, and the round goes on without."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from pfedseq.engines.conditions import FederationConfig
from pfedseq.engines.intake import Intake
from pfedseq.engines.roster import Roster
from pfedseq.engines.rounds import run_rounds
from pfedseq.errors import InputError
from pfedseq.federation import Client, Reply
from pfedseq.measures import Counts
from pfedseq.measures.counts import Predictions
from pfedseq.methods import METHODS
from pfedseq.params import Params, capped, trimmed_mean
from tests.engines.absences import ROUNDS, Passing, Silent, assert_same, build, memories, play
from tests.every_method import every_method
from tests.toys import make_setup, random_centers


class Spoiling(Passing):
    """An engine in which client 2's replies arrive spoiled."""

    def __init__(self, clients, spoil):
        super().__init__(clients)
        self.spoil = spoil

    def call(self, step, t, down):
        replies = self.clients.call(step, t, down)
        if step not in Client.reading_steps and 2 in replies:
            bad = self.spoil(replies.pop(2))
            replies |= bad if isinstance(bad, dict) else {2: bad}
        return replies


def each(change):
    return lambda reply: Reply({k: change(v) for k, v in reply.tensors.items()}, reply.metrics)


def with_one(value):
    def change(tensor):
        changed = tensor.clone().flatten()
        changed[-1] = value
        return changed.view_as(tensor)

    return each(change)


def said(**metrics):
    """With other metrics; none: without it."""

    def change(reply):
        changed = {**reply.metrics, **metrics}
        return Reply(reply.tensors, {k: v for k, v in changed.items() if v is not None})

    return change


INFINITE = "its tensor '.+' holds NaN or infinity"
OTHER = (
    r"its tensor '.+' is {} of shape \(.*\) where float32 of shape \(.*\) is expected: is its.*\?"
)
SPOILED = {
    "nan": (with_one(float("nan")), INFINITE),
    "infinity": (with_one(float("inf")), INFINITE),
    "shape": (each(lambda v: v[..., :-1]), OTHER.format("float32")),
    "dtype": (each(lambda v: v.double()), OTHER.format("float64")),
    "missing": (lambda reply: Reply({}, reply.metrics), "its reply has no tensor '.+'"),
    "absurd": (
        each(lambda v: 1e6 * (v + 1)),
        r"its update is .* times as long as the median of this .* is 100\)",
    ),
    "another's id": (lambda reply: {17: reply}, "it answers a message that was not sent to it"),
    "diverged": (said(diverged=1.0), r"its training diverged; lower the .* \(training\.lr\)"),
    "stale": (
        lambda reply: said(answered_round=reply.metrics["answered_round"] - 1)(reply),
        r"it answers a message of round (-1|\d) instead of \d",
    ),
    "no round": (
        said(answered_round=None),
        "it does not name the round whose message it answers",
    ),
    "for another": (
        said(answered_client=1),
        "it answers a message of client 1 instead of 2",
    ),
}
WHATEVER_IT_HOLDS = ("another's id", "stale", "no round", "for another")


def as_without_client_2(name, wrap, spoil):
    """The rounds' outcomes, once all but client 2 remember what they would if it were silent."""
    server, clients, engine = build(name)
    outcomes = []
    run_rounds(server, wrap(clients, spoil), range(1, ROUNDS + 1), outcomes.append)
    absent_server, absent_engine, _ = play(name, FederationConfig(), wrap=Silent)
    a, b = memories(server, engine, but=(2,)), memories(absent_server, absent_engine, but=(2,))
    assert_same(a, b)
    return outcomes


@every_method
@pytest.mark.parametrize("fault", SPOILED)
def test_a_bad_reply_is_as_good_as_none(name, fault):
    """What the server and the others remember is what they would without client 2."""
    if name == "local" and fault not in ("diverged", *WHATEVER_IT_HOLDS):
        pytest.skip("local sends nothing up")
    if name == "fedala" and fault not in WHATEVER_IT_HOLDS:
        pytest.skip("the reply to its second step holds nothing: the next test has it")
    if name == "pefll" and fault == "absurd":
        pytest.skip("its first reply is no update, so its length is not compared")
    spoil, says = SPOILED[fault]
    for outcome in as_without_client_2(name, Spoiling, spoil):
        assert outcome.answered == (0, 1, 3)
        assert all(re.fullmatch(says, reason) for reason in outcome.refused.values())
        assert outcome.refused


class Late(Spoiling):
    """Client 2's replies to `train` come a round later, instead of that round's."""

    def call(self, step, t, down):
        replies = self.clients.call(step, t, down)
        if step == "train":
            former, self.spoil = self.spoil, replies.pop(2)
            replies |= {2: former} if former else {}
        return replies


@pytest.mark.parametrize("name", ["fedavg", "pfedseq", "pfedhn"])
def test_a_reply_to_an_earlier_round_is_refused(name):
    """It is sound in itself, and would fit; the server remembers what it would without it."""
    outcomes = as_without_client_2(name, Late, None)
    assert [o.refused for o in outcomes] == [{}] + [
        {2: f"it answers a message of round {t - 1} instead of {t}"} for t in range(2, ROUNDS + 1)
    ]


@every_method
def test_a_nan_never_gets_into_the_servers_memory(name):
    server, clients, engine = build(name)
    spoiling = Spoiling(clients, with_one(float("nan")) if name != "local" else (lambda r: r))
    run_rounds(server, spoiling, range(1, ROUNDS + 1), lambda outcome: None)
    assert all(value.isfinite().all() for value in memories(server, engine).values())


def test_where_all_are_bad_the_run_ends_with_the_reason():
    server, clients, _ = build("fedavg")
    everyone = Spoiling(clients, None)
    everyone.call = lambda *_: {i: placed(i, Reply({}, {"diverged": 1.0})) for i in clients.ids}
    with pytest.raises(InputError, match=r"round 1 .*diverged; lower the learning rate"):
        run_rounds(server, everyone, range(1, 2), print)


@every_method
def test_a_client_that_diverges_keeps_its_memory_and_says_so(name):
    """Its gradients are NaN in round 2 alone; from round 3 on it trains as before."""
    server, clients, engine = build(name)
    healthy = engine.sites[2].task
    outcomes = []

    def task(t, step):
        found = healthy(t, step)
        if t == 2 and step == "train":
            found.grad = lambda phi, *_: phi * float("nan")
        return found

    engine.sites[2].task = task
    run_rounds(server, clients, range(1, 2), outcomes.append)
    before = engine.states.get(2)
    run_rounds(server, clients, range(2, 3), outcomes.append)
    if name not in ("fedala", "pefll"):  # these remember more in a second step of the round
        assert_same(engine.states.get(2), before)
    run_rounds(server, clients, range(3, 4), outcomes.append)
    assert [sorted(outcome.refused) for outcome in outcomes] == [[], [2], []]
    assert all(value.isfinite().all() for value in memories(server, engine).values())


def placed(i, reply):
    """The reply as one of client i to round 1."""
    return said(answered_round=1, answered_client=i)(reply)


def new_server(clients):
    centers = random_centers(clients, 1, 2, 1)
    method = METHODS["fedavg"]
    return method.server(method.config(), make_setup(centers, [1] * clients))


def screened(replies, down, server=None, **conditions):
    """What of these replies passes, and who was refused."""
    server = server or new_server(len(replies))

    class Canned:
        ids = range(len(replies))

        def call(self, step, t, down):
            return {i: placed(i, reply) for i, reply in enumerate(replies)}

    clients = Intake(Roster(Canned(), server, FederationConfig(**conditions)))
    return clients.call("train", 1, dict.fromkeys(Canned.ids, down)), clients.refused


def phi(*numbers):
    return Params(torch.tensor([numbers[:2]]), torch.tensor(numbers[2:])).tensors()


def test_length_is_that_of_the_change_and_compared_with_the_median():
    """From (9, 9, 9), changes of length 1, 2, 4 and 10: the median is 3."""
    replies = [Reply(phi(9 + 0.6 * n, 9.0, 9 + 0.8 * n)) for n in (1.0, 2.0, 4.0, 10.0)]
    start = phi(9.0, 9.0, 9.0)
    passed, refused = screened(replies, start, max_update_ratio=3.2)
    assert sorted(refused) == [3]
    assert "3.33 times" in refused[3]
    passed, refused = screened(replies, start, max_update_ratio=3.4)
    assert not refused
    for i, reply in passed.items():
        for name, tensor in reply.tensors.items():
            assert tensor is replies[i].tensors[name], "not cut, not touched"
    passed, refused = screened(replies, start, clip_ratio=1.0)
    assert not refused
    for i, n in enumerate((1.0, 2.0, 3.0, 3.0)):
        wanted = phi(9 + 0.6 * n, 9.0, 9 + 0.8 * n)
        torch.testing.assert_close(passed[i].tensors, wanted)


def test_of_two_first_updates_none_is_the_absurd_one():
    replies = [Reply(phi(1.0, 0.0, 0.0)), Reply(phi(1e9, 0.0, 0.0))]
    assert not screened(replies, phi(0.0, 0.0, 0.0))[1]


def test_of_two_updates_the_absurd_one_is_told_by_the_clients_own_last_ones():
    """Client 0's updates were 1, 2, 4 and 2 long (median 2), client 1's 30 each."""
    server, start = new_server(2), phi(0.0, 0.0, 0.0)

    def exchange(first, second, **conditions):
        return screened(
            [Reply(phi(n, 0.0, 0.0)) for n in (first, second)], start, server, **conditions
        )

    for first in (1.0, 2.0, 4.0, 2.0):
        assert not exchange(first, 30.0)[1]
    assert server.update_lengths.tolist() == [[0, 1, 2, 4, 2], [0, 30, 30, 30, 30]]
    passed, refused = exchange(199.0, 3001.0)
    assert sorted(passed) == [0]
    assert "100 times as long as the median of its own last ones" in refused[1]
    assert server.update_lengths.tolist() == [[1, 2, 4, 2, 199], [0, 30, 30, 30, 30]]
    passed, _ = exchange(3.0, 40.0, clip_ratio=1.2)  # the medians are 2 and 30
    assert passed[0].tensors["adapter"][0, 0] == pytest.approx(2.4)
    assert passed[1].tensors["adapter"][0, 0] == pytest.approx(36.0)


@pytest.mark.parametrize(("length", "fault"), [(201.0, True), (199.0, False)])
def test_a_client_without_a_past_is_compared_with_everyones(length, fault):
    server = new_server(2)
    server.update_lengths[0] = torch.tensor([0.0, 0.0, 1.0, 2.0, 3.0])
    replies = [Reply(phi(1.0, 0.0, 0.0)), Reply(phi(length, 0.0, 0.0))]
    _, refused = screened(replies, phi(0.0, 0.0, 0.0), server)
    assert (1 in refused) is fault
    if fault:
        assert "100 times as long as the median of everyone's last ones" in refused[1]


def test_lengths_follow_their_clients_to_new_places():
    server = new_server(3)
    server.update_lengths[:, -1] = torch.tensor([1.0, 2.0, 3.0])
    server.reseat([2, 0], {7: 10})
    assert server.update_lengths[:, -1].tolist() == [3, 1, 0]
    roster = Roster(None, server, FederationConfig())
    assert roster.update_lengths == {2: [3], 0: [1], 7: []}
    roster.note_lengths({7: 5.0})
    assert server.update_lengths[2].tolist() == [0, 0, 0, 0, 5]


def test_trimmed_mean_and_median_number_by_number():
    rows = torch.tensor([[1.0, 40.0], [2.0, 30.0], [3.0, 20.0], [90.0, -10.0]])
    assert trimmed_mean(rows, 0).tolist() == [24.0, 20.0]
    assert trimmed_mean(rows, 1).tolist() == [2.5, 25.0]
    with pytest.raises(ValueError, match="cannot be left out"):
        trimmed_mean(rows, 2)


def test_aggregation_stands_for_eq_1_over_the_present():
    setup = make_setup(random_centers(4), (1, 1, 2, 50))
    stacked = torch.tensor([[1.0], [2.0], [6.0], [100.0]])
    present = torch.tensor([True, True, True, False])
    assert setup.aggregate(stacked, present).item() == pytest.approx(15 / 4)
    assert setup.aggregate(stacked, present, weighted=False).item() == pytest.approx(3)
    assert replace(setup, aggregation="median").aggregate(stacked, present).item() == 2
    everyone = torch.ones(4, dtype=torch.bool)
    assert replace(setup, aggregation="median").aggregate(stacked, everyone).item() == 4
    trimmed = replace(setup, aggregation="trimmed_mean", trim=0.25)
    assert trimmed.aggregate(stacked, everyone).item() == 4
    assert replace(trimmed, trim=0.2).aggregate(stacked, everyone).item() == 109 / 4


def test_no_client_has_more_than_its_share_of_the_weights():
    """Of 1, 1, 2 and 10^12 at most a half: the last counts 4, the others' sum; all in all 8."""
    setup = replace(make_setup(random_centers(4), (1, 1, 2, 10**12)), max_weight=0.5)
    everyone = torch.ones(4, dtype=torch.bool)
    assert setup.weights(everyone).tolist() == [1, 1, 2, 4]
    assert setup.all_weights.tolist() == [1, 1, 2, 4]
    stacked = torch.tensor([[1.0], [1.0], [3.0], [100.0]])
    assert setup.aggregate(stacked, everyone).item() == pytest.approx(408 / 8)
    two = torch.tensor([True, False, False, True])
    assert setup.weights(two).tolist() == [1, 0, 0, 10**12], "of two, no limit"
    assert FederationConfig().max_weight == 0.5


def test_several_clients_may_have_too_much():
    """At most 0.3: of 1, 1, 50, 60 both large ones x with x = 0.3 (2x + 2), so 1.5; of 1, 1, 2, 3
    the 3 alone is more than 2.1; then x = 0.3 (x + 4) = 12/7, which the 2 exceeds as well."""
    assert capped(torch.tensor([50, 1, 60, 1]), 0.3).tolist() == pytest.approx([1.5, 1, 1.5, 1])
    assert capped(torch.tensor([1, 1, 2, 3]), 0.3).tolist() == pytest.approx([1, 1, 1.5, 1.5])
    assert capped(torch.tensor([2, 2, 3, 4]), 0.3).tolist() == pytest.approx([2, 2, 3, 3])
    for share in (0.26, 0.3, 0.5, 0.9):
        found = capped(torch.tensor([1, 2, 3, 10**9]), share)
        assert float(found.max() / found.sum()) == pytest.approx(share)
    ordinary = torch.tensor([10, 20, 30])
    assert capped(ordinary, 0.5) is ordinary, "a half is not more than a half"
    equal = torch.tensor([1, 1, 9])
    assert capped(equal, 1 / 3) is equal, "three can have a third only if they are equal"


class BadScores(Passing):
    """An engine in which client 2's evaluations arrive spoiled."""

    def __init__(self, clients, spoil, whose=(2,)):
        super().__init__(clients)
        self.spoil, self.whose = spoil, whose

    def call(self, step, t, down):
        replies = super().call(step, t, down)
        if step in ("evaluate", "evaluate_mean"):
            replies |= {i: self.spoil(replies[i]) for i in self.whose if i in replies}
        return replies


BAD_SCORES = {
    "nan": (said(test_loss=float("nan")), r"its test_loss is nan: its training diverged; lower .*"),
    "infinite": (said(validation_loss=float("inf")), "its validation_loss is inf: its training.*"),
    "missing": (said(test_loss=None), "its evaluation does not report test_loss"),
    "absurd": (
        said(test_accuracy=1e9),
        r"its evaluation says that its test_accuracy is 1e\+09, which cannot be",
    ),
    "negative": (said(test_loss=-1.0), "its evaluation says that its test_loss is -1, .*"),
    "fewer than none": (said(test_examples=-5.0), ".* its test_examples is -5, which cannot be"),
    "stale": (said(answered_round=0), r"it answers a message of round 0 instead of \d"),
    "for another": (said(answered_client=1), "it answers a message of client 1 instead of 2"),
}


@pytest.mark.parametrize("fault", BAD_SCORES)
def test_a_bad_evaluation_costs_a_client_its_score_and_nobody_anything_else(fault):
    spoil, says = BAD_SCORES[fault]
    sound, spoiled = (build("pfedseq") for _ in range(2))
    honest, outcomes = [], []
    run_rounds(*sound[:2], range(1, ROUNDS + 1), honest.append)
    bad = BadScores(spoiled[1], spoil)
    run_rounds(spoiled[0], bad, range(1, ROUNDS + 1), outcomes.append)
    assert_same(memories(sound[0], sound[2]), memories(spoiled[0], spoiled[2]))
    for one, other in zip(honest, outcomes, strict=True):
        assert sorted(other.evaluated) == [0, 1, 3]
        assert all(
            other.evaluated[i]["test_loss"] == one.evaluated[i]["test_loss"] for i in (0, 1, 3)
        )
        assert other.answered == (0, 1, 2, 3), "its training counts"
        assert list(other.refused) == [2]
        assert re.fullmatch(says, other.refused[2])


def test_where_nobodys_evaluation_can_be_used_the_run_ends_with_the_reason():
    server, clients, _ = build("fedavg")
    bad = BadScores(clients, said(test_loss=float("nan")), whose=range(4))
    with pytest.raises(InputError, match=r"no client's scores in round 1 .* client 0: .*diverged"):
        run_rounds(server, bad, range(1, 2), print)


def test_counts_that_cannot_be_are_refused_at_the_end_and_the_others_are_pooled():
    """Of four clients one claims 10^9 examples, one sends no table, one is honest, one silent."""
    labels = torch.tensor([0, 1, 2, 2, 1])
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    honest = Counts.of(Predictions.of(logits, labels))
    many = replace(honest, confusion=honest.confusion * np.array([1, 1, 10**9]))
    sent = [many.tensors(), {"confusion": torch.zeros(2)}, honest.tensors(), {}]
    numbers = {
        f"{s}_{k}": v for s in ("test", "validation") for k, v in (("loss", 1), ("examples", 5))
    }
    replies = [Reply(tensors, numbers) for tensors in sent]

    class Canned:
        ids = range(4)

        def call(self, step, t, down):
            return {i: placed(i, reply) for i, reply in enumerate(replies)}

    server = new_server(4)
    server.setup = replace(server.setup, num_classes=3)
    intake = Intake(Roster(Canned(), server, FederationConfig()))
    assert sorted(intake.replies("assess", 1)) == [2, 3]
    assert intake.refused == {
        0: "the counts of its test predictions do not add up to its 5 test examples",
        1: "the counts of its test predictions are not readable",
    }
