"""Clients in one pass: the same gradients, whatever the company, the timing and the failures."""

import random
import threading
import time
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from pfedseq.data.dataset import ClientData, ImageSet
from pfedseq.engines.answer import answer
from pfedseq.engines.grouping import automatic_size, grouped
from pfedseq.engines.local import LocalClients
from pfedseq.engines.rendezvous import Question
from pfedseq.engines.rounds import run_rounds
from pfedseq.engines.wire import WireClients
from pfedseq.errors import InputError
from pfedseq.federation import Client, MethodConfig, Reply, Setup
from pfedseq.measures import Score
from pfedseq.methods import METHODS
from pfedseq.model import shared_passes
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.backbone import load_backbone
from pfedseq.model.encoders.vit.stacked import StackedTower
from pfedseq.model.readout import EVALUATION_BATCH
from pfedseq.model.task import ExampleSite, ExampleTask
from pfedseq.params import Params
from pfedseq.workloads.images.auxiliary import auxiliary_images
from pfedseq.workloads.images.source import ImageSource

SIZES = (9, 4, 6)
"""Training images: three, one and two batches of at most four."""

KINDS = [
    AdapterConfig(rank=2, alpha=6.0),
    AdapterConfig(rank=1, alpha=3.0, targets=("key", "output", "mlp_in", "mlp_out"), layers=(1, 3)),
    AdapterConfig(rank=2, alpha=6.0, layers="last 1"),
    AdapterConfig(kind="dora", rank=2, alpha=6.0, targets=("query", "mlp_out")),
    AdapterConfig(kind="ia3", targets=("key", "value", "mlp_in", "mlp_out"), layers="last 2"),
]


def make_sites(adapter=KINDS[0], double=False):
    rng = np.random.default_rng(0)
    count = sum(SIZES) + 6
    images = ImageSet(
        "noise",
        rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8),
        rng.integers(0, 3, count),
        tuple("abc"),
    )
    backbone = load_backbone("random:demo", 32, seed=1)
    if double:
        backbone.model.double()
    model = AdaptedModel(backbone, adapter, 3, seed=0)
    if double:
        model.initial = Params(model.initial.adapter.double(), model.initial.head.double())
    source = Source(images, backbone.mean, backbone.std, torch.device("cpu"), model, double)
    starts = np.cumsum([0, *SIZES])
    return [
        ExampleSite(
            i,
            model,
            source,
            ClientData(
                str(i),
                np.arange(starts[i], starts[i + 1]),
                np.arange(sum(SIZES), sum(SIZES) + 2),
                np.arange(sum(SIZES) + 2 * i, sum(SIZES) + 2 * i + 2),
            ),
            batch_size=4,
            seed=0,
        )
        for i in range(len(SIZES))
    ]


class Source(ImageSource):
    """Inputs below the first adapted layer computed on the spot, in double precision if asked."""

    def __init__(self, images, mean, std, device, model, double):
        super().__init__(images, mean, std, device)
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "double", double)

    def inputs(self, indices):
        pixels = self.pixels(indices)
        return self.model.inputs(pixels.double() if self.double else pixels)


def jittered(initial, seed):
    rng = torch.Generator().manual_seed(seed)

    def shift(x):
        return x + 0.2 * torch.randn(x.shape, generator=rng, dtype=x.dtype)

    return Params(shift(initial.adapter), shift(initial.head))


@pytest.mark.parametrize("adapter", KINDS, ids=lambda c: f"{c.kind}-{'+'.join(c.targets)}")
def test_gradients_are_those_of_each_alone(adapter):
    """In float64, for unequal batches and other parts of φ, to 1e-9 of each client's gradient."""
    sites = make_sites(adapter, double=True)
    tasks = [site.task(1, "train") for site in sites]
    batches = [torch.arange(n) for n in (4, 1, 3)]
    phis = [jittered(task.initial, i) for i, task in enumerate(tasks)]
    parts = ("both", "adapter", "both")
    questions = [
        Question(*q)
        for q in zip(tasks, ["grad"] * 3, zip(phis, batches, parts, strict=True), strict=True)
    ]
    for question, together in zip(questions, ExampleTask.answer_together(questions), strict=True):
        alone = question.answer()
        assert close(together.adapter, alone.adapter)
        assert close(together.head, alone.head)
        assert alone.adapter.norm() > 0


def close(one, other):
    """To 1e-9 of the other, in float64."""
    assert one.dtype == torch.float64
    return (one - other).norm() <= 1e-9 * other.norm()


def test_gradients_of_heads_are_those_of_each_alone():
    """Batches of 4, 1 and 3 in one product; the shorter ones' padding counts for nothing."""
    tasks = [site.task(1, "train") for site in make_sites(double=True)]
    questions = [
        Question(task, "grad", (jittered(task.initial, i), torch.tensor(batch), "head"))
        for i, (task, batch) in enumerate(zip(tasks, ([8, 0, 5, 2], [3], [5, 1, 4]), strict=True))
    ]
    for question, together in zip(questions, ExampleTask.answer_together(questions), strict=True):
        alone = question.task.grad(*question.arguments)
        assert close(together.head, alone.head)
        assert alone.head.norm() > 0
        assert not together.adapter.any()
        assert together.adapter.shape == alone.adapter.shape


def test_features_of_the_head_phase_are_computed_once(monkeypatch):
    """Again only for the client whose θ has changed."""
    tasks = [site.task(1, "train") for site in make_sites()]
    seen, plain = [], StackedTower.features

    def counted(self, adapters, inputs, counts):
        seen.append(list(counts))
        return plain(self, adapters, inputs, counts)

    monkeypatch.setattr(StackedTower, "features", counted)

    def ask(*seeds):
        asked = zip(tasks, seeds, strict=True)
        phis = [(task, jittered(task.initial, seed)) for task, seed in asked]
        batch = torch.tensor([1, 3])
        questions = [Question(task, "grad", (phi, batch, "head")) for task, phi in phis]
        return ExampleTask.answer_together(questions)

    first, again, other = ask(1, 2, 3), ask(1, 2, 3), ask(1, 4, 3)
    assert seen == [list(SIZES), [SIZES[1]]]
    for i in range(3):
        assert torch.equal(first[i].head, again[i].head)
        assert torch.equal(first[i].head, other[i].head) == (i != 1)


@pytest.mark.parametrize("at_once", [1, 2])
def test_losses_and_scores_are_those_of_each_alone(monkeypatch, at_once):
    """Of 9, 4 and 6 examples the largest goes by itself; one client has nothing to validate on."""
    monkeypatch.setattr(shared_passes, "ENOUGH_ALONE", 7)
    monkeypatch.setattr(shared_passes, "AT_ONCE", at_once)
    sites = make_sites(double=True)
    sites[2] = replace(sites[2], data=replace(sites[2].data, validation=np.arange(0)))
    tasks = [site.task(1, "evaluate") for site in sites]
    phis = [jittered(task.initial, i) for i, task in enumerate(tasks)]
    batches = [torch.arange(n) for n in (4, 1, 3)]
    losses = [Question(t, "loss", a) for t, *a in zip(tasks, phis, batches, strict=True)]
    for question, together in zip(losses, ExampleTask.answer_together(losses), strict=True):
        assert together == pytest.approx(question.answer(), rel=1e-9)
    for split in ("train", "validation", "test"):
        asked = [Question(t, "score", (p, split, True)) for t, p in zip(tasks, phis, strict=True)]
        for question, together in zip(asked, ExampleTask.answer_together(asked), strict=True):
            alone = question.answer()
            assert together.values == pytest.approx(dict(alone.values), rel=1e-5, abs=1e-6)
            assert together.num_examples == alone.num_examples
            if alone.num_examples:
                assert {"accuracy", "macro_f1", "ece", "brier"} <= together.values.keys()
            assert together.counts.matrix().tolist() == alone.counts.matrix().tolist()
            assert together.num_examples == len(getattr(question.task.data, split))


def test_a_pass_holds_no_more_than_its_share_of_examples(monkeypatch):
    """20 clients' scores of two images each: passes of eight clients, not one of forty images."""
    seen, plain = [], StackedTower.features

    def counted(self, adapters, inputs, counts):
        seen.append((len(inputs), len(counts)))
        return plain(self, adapters, inputs, counts)

    monkeypatch.setattr(StackedTower, "features", counted)
    task = make_sites()[0].task(1, "evaluate")
    phis = [jittered(task.initial, seed) for seed in range(20)]
    together = ExampleTask.answer_together(
        [Question(task, "score", (p, "test", False)) for p in phis]
    )
    assert seen == [(16, 8), (16, 8), (8, 4)]
    alone = [task.score(phi, "test") for phi in phis]
    losses = [one["loss"] for one in together]
    assert losses == pytest.approx([one["loss"] for one in alone], rel=1e-4)
    assert shared_passes.AT_ONCE * (shared_passes.ENOUGH_ALONE - 1) <= EVALUATION_BATCH


def test_every_kind_of_question_finds_its_answer():
    tasks = [site.task(1, "train") for site in make_sites()]
    phi, batch = jittered(tasks[0].initial, 0), torch.arange(4)
    questions = [
        Question(tasks[0], "score", (phi, "test", False)),
        Question(tasks[1], "grad", (phi, batch, "both")),
        Question(tasks[2], "loss", (phi, batch)),
        Question(tasks[0], "grad", (phi, batch, "head")),
        Question(tasks[2], "grad", (phi, batch, "adapter")),
    ]
    answers = ExampleTask.answer_together(questions)
    for question, together in zip(questions, answers, strict=True):
        alone = question.answer()
        if isinstance(alone, Params):
            torch.testing.assert_close(together.flat(), alone.flat(), rtol=1e-3, atol=1e-5)
        elif isinstance(alone, Score):
            assert together["accuracy"] == alone["accuracy"]
            assert together["loss"] == pytest.approx(alone["loss"], rel=1e-4)
        else:
            assert together == pytest.approx(alone, rel=1e-4)


def test_dropout_is_not_stacked_but_answered():
    tasks = [site.task(1, "train") for site in make_sites(AdapterConfig(dropout=0.5))]
    again = [site.task(1, "train") for site in make_sites(AdapterConfig(dropout=0.5))]
    phi, batch = jittered(tasks[0].initial, 0), torch.arange(4)
    questions = [Question(task, "grad", (phi, batch, "both")) for task in tasks]
    together = ExampleTask.answer_together(questions)
    for task, gradient in zip(again, together, strict=True):
        assert torch.equal(task.grad(phi, batch).adapter, gradient.adapter)


def play(name, together, threads=1, engine=LocalClients, disturb=None, rounds=2):
    """Records of a few rounds and what the clients end with."""
    method, sites = METHODS[name], make_sites()
    options = {"perada": {"distillation_steps": 1}, "pfedseq": {"warmup_rounds": 1}}
    config = method.config(lr=0.05, **options.get(name, {}))
    clients = engine(method.client, config, sites, threads=threads, clients_per_pass=together)
    model, source = sites[0].model, sites[0].source
    auxiliary = auxiliary_images(model, source, 32, 0)
    given = {"num_classes": 3, "auxiliary": auxiliary, "factors": model.factors}
    setup = Setup(model.initial, SIZES, rounds, seed=0, **given)
    server, records = method.server(config, setup), []

    def keep(outcome):
        records.append(
            {
                i: {k: v for k, v in m.items() if not k.endswith("_seconds")}
                for i, m in outcome.evaluated.items()
            }
        )

    with pytest.MonkeyPatch.context() as patch:
        if disturb is not None:
            batches = ExampleTask.batches
            patch.setattr(ExampleTask, "batches", lambda *a: (disturb(b) for b in batches(*a)))
        run_rounds(server, clients, range(1, rounds + 1), keep)
    down = {i: server.payload(i) for i in clients.ids}
    final: dict = {}
    clients.sites = [
        replace(site, keep=lambda phi, i=i: final.update({i: phi.tensors()}))
        for i, site in enumerate(sites)
    ]
    assert not any(r.tensors for r in clients.call("export", rounds, down).values())
    return records, final


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_in_a_group_as_it_does_alone(name):
    alone, together = play(name, 1), play(name, 3)
    for i, tensors in alone[1].items():
        for key, tensor in tensors.items():
            torch.testing.assert_close(together[1][i][key], tensor, rtol=1e-3, atol=1e-4)
    pairs = play(name, 2)
    for i, tensors in alone[1].items():
        for key, tensor in tensors.items():
            torch.testing.assert_close(pairs[1][i][key], tensor, rtol=1e-3, atol=1e-4)


def test_load_threads_and_the_wire_change_no_bit():
    """Clients that dawdle at random, groups side by side, messages as bytes."""
    rng = random.Random(0)

    def dawdle(batch):
        time.sleep(rng.random() / 200)
        return batch

    records, final = play("ditto", 2)
    for variant in (
        play("ditto", 2, disturb=dawdle),
        play("ditto", 2, threads=2, disturb=dawdle),
        play("ditto", 2, engine=WireClients),
    ):
        assert variant[0] == records
        for i, tensors in final.items():
            assert all(torch.equal(variant[1][i][key], value) for key, value in tensors.items())


def test_all_that_are_present_are_answered_in_one_pass(monkeypatch):
    """Three, one and two batches: passes of 3, 2 and 1 clients, in the order of their numbers."""
    seen, plain = [], ExampleTask.answer_together

    def counted(questions):
        seen.append([q.task.num_examples for q in questions])
        return plain(questions)

    monkeypatch.setattr(ExampleTask, "answer_together", staticmethod(counted))
    method, sites = METHODS["fedavg"], make_sites()
    clients = LocalClients(method.client, method.config(lr=0.05), sites, clients_per_pass=3)
    down = {i: sites[0].model.initial.tensors() for i in (2, 0, 1)}
    assert list(clients.call("train", 1, down)) == [2, 0, 1]
    assert seen == [[9, 4, 6], [9, 6]], "the last one is alone and needs no company"


class Failing(Client):
    """Client 1 fails after its first gradient; the others go on."""

    finished: ClassVar[list[int]] = []

    def train(self, down):
        phi = self.task.initial
        for count, batch in enumerate(self.task.batches(1)):
            if self.task.num_examples == SIZES[1] or count > 5:
                raise InputError("client 1 is out of paper")
            phi = phi.descend(self.task.grad(phi, batch), 0.1)
        self.finished.append(self.task.num_examples)
        return Reply(phi.tensors())

    def personal(self, down):
        return self.task.initial


def call_within(seconds, clients, step):
    """The call's failure; fails itself where it hangs."""
    outcome = []

    def run():
        try:
            clients.call(step, 1, {i: {} for i in clients.ids})
        except BaseException as problem:
            outcome.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "the group hangs"
    return outcome[0]


def test_a_failing_client_does_not_hold_up_the_others():
    Failing.finished.clear()
    clients = LocalClients(Failing, MethodConfig(), make_sites(), clients_per_pass=3)
    assert "out of paper" in str(call_within(60, clients, "train"))
    assert sorted(Failing.finished) == [6, 9]


def test_a_failing_pass_fails_all_that_wait_for_it(monkeypatch):
    def broken(questions):
        raise MemoryError("no room for the pass")

    monkeypatch.setattr(ExampleTask, "answer_together", staticmethod(broken))
    method = METHODS["fedavg"]
    clients = LocalClients(Failing, method.config(), make_sites(), clients_per_pass=3)
    assert isinstance(call_within(60, clients, "train"), MemoryError | InputError)


def test_only_listed_steps_are_run():
    """`step` may come out of a message: no other attribute of the client is reachable by it."""
    method, sites = METHODS["fedavg"], make_sites()
    for step in ("personal", "__init__", "task", "receive"):
        with pytest.raises(InputError, match=f"no step '{step}'"):
            answer(method.client, method.config(), sites[0], {}, step, 1, 0, {})


def test_groups_are_equal_and_follow_from_the_numbers_alone():
    assert grouped([4, 0, 3, 1, 2], 2) == [[0], [1, 2], [3, 4]]
    assert grouped(range(10), 5) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert grouped([7], 5) == [[7]]
    assert grouped([], 5) == []


def test_automatic_size(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert automatic_size(10, 8) == 5
    assert automatic_size(100, 8) == 5
    assert automatic_size(6, 16) == 2
    assert automatic_size(6, 8) == 3
    assert automatic_size(12, 8) == 3, "three groups of four would leave a core idle"
    assert automatic_size(1, 16) == 1
    assert automatic_size(100, 128) == 1
