"""Many clients' images in one pass, and the queue that brings them together."""

import threading
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
import torch

from pfedseq.errors import InputError
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.backbone import load_backbone
from pfedseq.serving.batching import Batcher, TooManyWaiting
from pfedseq.serving.client_models import ClientModels
from pfedseq.serving.together import ModelsTogether, load_together, mean_model
from tests.model.some_models import NAMES, personal_model, some_phi


def models(config, number=4):
    model = AdaptedModel(load_backbone("demo"), config, len(NAMES), seed=0)
    return [personal_model(model, some_phi(model, seed), NAMES) for seed in range(number)]


def images(number):
    return list(np.random.default_rng(0).integers(0, 256, (number, 3, 32, 32), dtype=np.uint8))


@pytest.mark.parametrize(
    "config",
    [
        AdapterConfig(alpha=16.0),
        AdapterConfig(kind="dora", layers="last 2"),
        AdapterConfig(kind="ia3", targets=("key", "mlp_out")),
    ],
    ids=lambda config: config.kind,
)
def test_answers_are_those_of_one_at_a_time(config):
    """In any order of clients, some with several images, one with none."""
    several = models(config)
    rows, shown = [3, 0, 3, 1, 0, 3], images(6)
    shares = ModelsTogether(several).probabilities(rows, shown)
    alone = torch.cat(
        [several[row].predict([image]) for row, image in zip(rows, shown, strict=True)]
    )
    torch.testing.assert_close(shares, alone, rtol=1e-4, atol=1e-5)
    others = torch.cat([several[2].predict([image]) for image in shown])
    assert not torch.allclose(shares, others, atol=1e-2), "clients' models differ"


def test_models_of_different_kinds_are_not_served_together():
    one, other = models(AdapterConfig(), 1), models(AdapterConfig(rank=3), 1)
    with pytest.raises(InputError, match="only models of one kind"):
        ModelsTogether([*one, *other])
    renamed = replace(one[0], class_names=tuple("abcde"))
    with pytest.raises(InputError, match="only models of one kind"):
        ModelsTogether([*one, renamed])


def test_the_mean_model_weighs_by_training_images():
    several = models(AdapterConfig(), 3)
    weighed = [replace(m, about={"num_train": n}) for m, n in zip(several, (1, 2, 5), strict=True)]
    adapters = [m.phi.adapter for m in several]
    expected = (adapters[0] + 2 * adapters[1] + 5 * adapters[2]) / 8
    torch.testing.assert_close(mean_model(weighed).phi.adapter, expected)
    heads = [m.phi.head for m in several]
    torch.testing.assert_close(mean_model([*weighed[:2], several[2]]).phi.head, sum(heads) / 3)


def test_the_global_model_is_fedavgs_where_the_run_has_it(finished, tmp_path):
    found = ClientModels.open(finished, "local")
    loaded, everyones, words = load_together(found)
    assert words == "FedAvg's global model"
    expected = ClientModels.open(finished, "fedavg").load(2)
    assert torch.equal(everyones.phi.adapter, expected.phi.adapter)
    assert everyones.model is loaded[0].model
    alone = ClientModels(tmp_path, None, found.places)
    loaded, everyones, words = load_together(alone)
    assert words == "the mean of all clients' models"
    assert torch.equal(everyones.phi.adapter, mean_model(loaded).phi.adapter)


class Slow:
    """Answers with each row's number, once it is let go; remembers what came together."""

    def __init__(self):
        self.entered, self.go, self.passes = threading.Event(), threading.Event(), []

    def __call__(self, rows, shown):
        self.entered.set()
        assert self.go.wait(20)
        assert len(rows) == len(shown)
        self.passes.append(list(rows))
        return torch.tensor(rows, dtype=torch.float32)[:, None]


def test_what_comes_during_a_pass_shares_the_next_one():
    slow, image = Slow(), images(1)[0]
    batcher = Batcher(slow, most=4, waiting=100)
    first = batcher.ask([7], image)
    assert slow.entered.wait(20)
    later = [batcher.ask(rows, image) for rows in ([1], [2, 9], [3], [4], [5])]
    slow.go.set()
    assert first.result(20).tolist() == [[7.0]]
    assert [f.result(20).flatten().tolist() for f in later] == [[1], [2, 9], [3], [4], [5]]
    assert slow.passes == [[7], [1, 2, 9, 3], [4, 5]], "at most four rows in a pass"
    assert (batcher.passes, batcher.answered) == (3, 6)
    batcher.close()


def test_a_full_queue_refuses_and_the_rest_is_answered():
    slow, image = Slow(), images(1)[0]
    batcher = Batcher(slow, most=4, waiting=2)
    first = batcher.ask([0], image)
    assert slow.entered.wait(20)
    waiting = [batcher.ask([n], image) for n in (1, 2)]
    assert batcher.waiting == 2
    with pytest.raises(TooManyWaiting):
        batcher.ask([3], image)
    slow.go.set()
    assert [f.result(20).item() for f in (first, *waiting)] == [0, 1, 2]
    batcher.close()


def test_who_gives_up_is_left_out():
    slow, image = Slow(), images(1)[0]
    batcher = Batcher(slow, most=4, waiting=9)
    batcher.ask([0], image)
    assert slow.entered.wait(20)
    gone, stays = batcher.ask([1], image), batcher.ask([2], image)
    assert gone.cancel()
    slow.go.set()
    assert stays.result(20).item() == 2
    batcher.close()
    assert slow.passes == [[0], [2]]


def test_a_failure_is_told_and_the_next_request_answered():
    def fail_on_one(rows, shown):
        if 1 in rows:
            raise RuntimeError("no memory")
        return torch.tensor(rows)[:, None]

    batcher = Batcher(fail_on_one, most=1, waiting=9)
    failed: Future = batcher.ask([1], images(1)[0])
    with pytest.raises(RuntimeError, match="no memory"):
        failed.result(20)
    assert batcher.ask([2], images(1)[0]).result(20).item() == 2
    batcher.close()


def test_closing_answers_what_waits():
    slow, image = Slow(), images(1)[0]
    batcher = Batcher(slow, most=2, waiting=9)
    futures = [batcher.ask([n], image) for n in range(5)]
    slow.go.set()
    batcher.close()
    assert [f.result(0).item() for f in futures] == [0, 1, 2, 3, 4]
