"""What an image task reads, and when: each batch once, and the same for test and export."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from pfedseq.data.dataset import ClientData, ImageSet
from pfedseq.methods.ditto import DittoClient, DittoConfig
from pfedseq.methods.pfedme import PFedMeClient, PFedMeConfig
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.backbone import load_backbone
from pfedseq.model.task import ExampleSite, ExampleTask
from pfedseq.workloads.images.source import ImageSource


@pytest.fixture(scope="module")
def site() -> ExampleSite:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (24, 3, 32, 32), dtype=np.uint8)
    images = ImageSet("noise", pixels, rng.integers(0, 3, 24), tuple("abc"))
    everything = np.arange(24)
    client = ClientData("0", everything[:10], everything[10:14], everything[14:])
    backbone = load_backbone("random:vit-tiny", 32)
    model = AdaptedModel(backbone, AdapterConfig(rank=2), 3, seed=0)
    source = ImageSource(images, backbone.mean, backbone.std, torch.device("cpu"))
    return ExampleSite(0, model, source, client, batch_size=4, seed=0)


def test_the_loss_is_the_one_that_is_differentiated(site):
    task = site.task(1, "train")
    batch = next(task.batches(1))
    phi = site.model.initial
    indices = site.data.train[batch.numpy()]
    features = site.model.features(phi.adapter, site.source.pixels(indices))
    expected = cross_entropy(site.model.classify(phi.head, features), site.source.labels(indices))
    assert task.loss(phi, batch) == pytest.approx(expected.item())


class Forgetful(ExampleTask):
    """Reads a batch anew every time it is asked for."""

    def examples(self, batch):
        self._read = None
        return super().examples(batch)


@pytest.mark.parametrize(
    ("client", "config", "gradients"),
    [(PFedMeClient, PFedMeConfig(inner_steps=5), 5), (DittoClient, DittoConfig(), 2)],
)
def test_each_batch_is_read_once(site, monkeypatch, client, config, gradients):
    """pFedMe's K steps and Ditto's two on each of 3 batches: 3 readings, and the same bits."""
    reads = []
    plain_pixels = ImageSource.pixels

    def counted(self, indices):
        reads.append(len(indices))
        return plain_pixels(self, indices)

    monkeypatch.setattr(ImageSource, "pixels", counted)

    def train(task):
        reads.clear()
        initial, state = task.initial, {}
        reply = client(config, task, state).train(
            {"adapter": initial.adapter, "head": initial.head}
        )
        return [*state.values(), *reply.tensors.values()], list(reads)

    results, readings = train(site.task(1, "train"))
    same = site.task(1, "train")
    naive = Forgetful(
        site.model, site.source, site.data, site.batch_size, same._order, same._dropout
    )
    naive_results, naive_readings = train(naive)
    assert readings == [4, 4, 2]
    assert naive_readings == [4] * gradients + [4] * gradients + [2] * gradients
    assert all(torch.equal(a, b) for a, b in zip(results, naive_results, strict=True))
    assert not torch.equal(results[0], site.model.initial.adapter)


def test_testing_and_exporting_draw_the_same_batches(site):
    def order(step, t=1):
        return torch.cat(list(site.task(t, step).batches(1))).tolist()

    assert order("evaluate") == order("export")
    assert order("evaluate") != order("train")
    assert order("evaluate") != order("evaluate", t=2)


def test_a_round_draws_some_of_the_examples(site):
    """A few that differ by round and client, the same for all steps of a round, in all the data."""
    short = replace(site, examples_per_round=4)
    other = replace(short, client=1)

    def of(site, t, step="train"):
        task = site.task(t, step)
        places = torch.cat(list(task.batches(1))).tolist()
        assert task.num_examples == len(places)
        assert sorted(task.round_examples.tolist()) == sorted(site.data.train[places].tolist())
        return set(places)

    assert short.task(0, "hello").hello().train_examples == 10
    first = of(short, 1)
    assert len(first) == 4
    assert first == of(short, 1, "describe")
    assert first not in (of(short, 2), of(other, 1))
    assert set().union(*(of(short, t) for t in range(1, 20))) == set(range(10))
    assert of(replace(site, examples_per_round=10), 1) == set(range(10))


def test_places_mean_the_same_in_every_round(site):
    """PeFLL describes a batch in one round and differentiates it in the next."""
    short = replace(site, examples_per_round=4)
    batch = next(short.task(1, "describe").batches(1))
    later = short.task(2, "backprop").sketches(batch)
    assert all(map(torch.equal, later, site.task(1, "describe").sketches(batch)))


def test_the_head_phase_reads_only_what_was_drawn(site, monkeypatch):
    short = replace(site, examples_per_round=4)
    phi, reads = site.model.initial, []
    plain = ImageSource.inputs
    monkeypatch.setattr(
        ImageSource, "inputs", lambda self, i: (reads.append(len(i)), plain(self, i))[1]
    )
    task = short.task(1, "train")
    batch = next(task.batches(1))
    gradient = task.grad(phi, batch, "head")
    assert reads == [4]
    monkeypatch.undo()
    expected = site.task(1, "train").grad(phi, batch, "both")
    torch.testing.assert_close(gradient.head, expected.head, rtol=1e-4, atol=1e-6)
