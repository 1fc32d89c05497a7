"""PerAda's teachers and student on the real model, and PeFLL's small images."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import kl_div

from pfedseq.data.dataset import ClientData, ImageSet
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.backbone import load_backbone
from pfedseq.model.task import ExampleSite
from pfedseq.params import Params
from pfedseq.workloads.images.auxiliary import auxiliary_images
from pfedseq.workloads.images.source import ImageSource

CLASSES = 4


def noise(count, size):
    rng = np.random.default_rng(0)
    return ImageSet(
        "noise",
        rng.integers(0, 256, (count, 3, size, size), dtype=np.uint8),
        rng.integers(0, CLASSES, count),
        tuple("abcd"),
    )


@pytest.fixture(scope="module")
def backbone():
    return load_backbone("random:vit-tiny", 32)


@pytest.fixture(scope="module")
def model(backbone):
    return AdaptedModel(backbone, AdapterConfig(rank=1), CLASSES, seed=0)


@pytest.fixture(scope="module")
def auxiliary(model, backbone):
    source = ImageSource(noise(5, 16), backbone.mean, backbone.std, torch.device("cpu"))
    return auxiliary_images(model, source, image_size=32, seed=0)


def jittered(model, seed):
    rng = torch.Generator().manual_seed(seed)
    initial = model.initial
    return Params(
        initial.adapter + 0.1 * torch.randn(initial.adapter.shape, generator=rng),
        initial.head + 0.1 * torch.randn(initial.head.shape, generator=rng),
    )


def test_batches_are_whole_passes_of_enlarged_images(auxiliary):
    """3 batches of 4 from 5 images: 12 = two passes and two more; nobody comes four times."""
    batches = list(auxiliary.batches(1, count=3, size=4))
    assert [tuple(b.shape) for b in batches] == [(4, 3, 32, 32)] * 3
    images, counts = torch.unique(torch.cat(batches), dim=0, return_counts=True)
    assert len(images) == 5
    assert sorted(counts.tolist()) == [2, 2, 2, 3, 3]


def test_batches_depend_on_the_round_alone(auxiliary):
    first, again, later = (torch.cat(list(auxiliary.batches(t, 2, 5))) for t in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)


def test_teachers_are_swapped_into_the_one_backbone(auxiliary, model):
    """Each teacher's logits are those it has alone, in any order; the backbone keeps nothing."""
    (batch,) = auxiliary.batches(1, 1, 5)
    one, other = jittered(model, 1), jittered(model, 2)
    both = auxiliary.logits([one, other], batch)
    assert both.shape == (2, 5, CLASSES)
    assert not both.requires_grad
    assert not torch.allclose(both[0], both[1], atol=1e-3)
    assert torch.equal(auxiliary.logits([other, one], batch), both.flip(0))
    alone = model.classify(one.head, model.features(one.adapter, batch))
    torch.testing.assert_close(both[0], alone)
    assert torch.equal(replace(auxiliary, threads=3).logits([one, other] * 3, batch)[4:], both)


def test_the_gradient_of_the_divergence_by_finite_differences(backbone):
    """A central difference of mean KL(p ‖ q) along a random direction, in double precision."""
    double = copy.copy(backbone)
    object.__setattr__(double, "model", copy.deepcopy(backbone.model).double())
    model = AdaptedModel(double, AdapterConfig(rank=1), CLASSES, seed=0)
    source = ImageSource(noise(5, 32), backbone.mean, backbone.std, torch.device("cpu"))
    auxiliary = auxiliary_images(model, source, image_size=32, seed=0)
    (batch,) = auxiliary.batches(1, 1, 5)
    batch = batch.double()

    def as_double(phi):
        return Params(phi.adapter.double(), phi.head.double())

    student, direction = as_double(jittered(model, 1)), as_double(jittered(model, 3))
    teacher = auxiliary.logits([as_double(jittered(model, 2))], batch)[0]

    def divergence(phi):
        log_q = auxiliary.logits([phi], batch)[0].log_softmax(1)
        p = teacher.softmax(1)
        return float((p * (p.log() - log_q)).sum(1).mean())

    h = 1e-5
    slope = (divergence(student + h * direction) - divergence(student - h * direction)) / (2 * h)
    gradient = auxiliary.distillation_grad(student, batch, teacher)
    assert float(gradient.flat() @ direction.flat()) == pytest.approx(slope, rel=1e-5)
    assert abs(slope) > 1e-4


def test_a_student_that_is_the_teacher_has_no_gradient(auxiliary, model):
    (batch,) = auxiliary.batches(1, 1, 5)
    phi = jittered(model, 1)
    gradient = auxiliary.distillation_grad(phi, batch, auxiliary.logits([phi], batch)[0])
    assert float(gradient.flat().square().sum()) < 1e-10


def test_descending_brings_the_student_to_the_teacher(auxiliary, model):
    (batch,) = auxiliary.batches(1, 1, 5)
    student, teacher = jittered(model, 1), auxiliary.logits([jittered(model, 2)], batch)[0]

    def divergence(phi):
        log_q = auxiliary.logits([phi], batch)[0].log_softmax(1)
        return float(kl_div(log_q, teacher.softmax(1), reduction="batchmean"))

    gradient = auxiliary.distillation_grad(student, batch, teacher)
    assert divergence(student - 0.01 * gradient) < divergence(student)


def test_sketches_are_block_means_of_the_normalised_images(model, backbone):
    """64 × 64 averages down to 32 × 32 in blocks of 2 × 2; labels go with their images."""
    images = noise(12, 64)
    source = ImageSource(images, backbone.mean, backbone.std, torch.device("cpu"))
    client = ClientData("0", np.array([7, 3, 9, 1]), np.array([0]), np.array([2]))
    task = ExampleSite(0, model, source, client, batch_size=2, seed=0).task(1, "describe")
    small, labels = task.sketches(torch.tensor([2, 0]))
    raw = torch.from_numpy(images.images[[9, 7]]).double().view(2, 3, 32, 2, 32, 2).mean((3, 5))
    torch.testing.assert_close(small.double(), (raw / 255 - 0.5) / 0.5, atol=1e-6, rtol=1e-5)
    assert labels.tolist() == images.labels[[9, 7]].tolist()
