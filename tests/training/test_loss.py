"""Losses against PyTorch's and by hand; several clients' together as each one's alone."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from pfedseq.config import TrainingConfig, make_config
from pfedseq.data.dataset import ClientData, ImageSet
from pfedseq.engines.rendezvous import Question
from pfedseq.errors import InputError
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.backbone import load_backbone
from pfedseq.model.task import ExampleSite, ExampleTask
from pfedseq.params import Params
from pfedseq.training.loss import NO_LABEL, Loss, LossConfig, mean_losses
from pfedseq.workloads.images.source import ImageSource

NAMES = ("cat", "dog", "owl")
LABELS = torch.tensor([0, 0, 0, 1])  # no owl
LOGITS = torch.tensor([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]])
OPTIONS = {
    "plain": {},
    "smoothing": {"label_smoothing": 0.2},
    "balanced": {"class_weights": "balanced"},
    "given": {"class_weights": [1.0, 2.0, 0.5]},
    "named": {"class_weights": {"dog": 3.0}, "label_smoothing": 0.1},
    "softmax": {"loss": "balanced_softmax"},
    "softmax and weights": {"loss": "balanced_softmax", "class_weights": "balanced"},
}
every_loss = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def loss_of(**options) -> Loss:
    return Loss.of(LossConfig(**options), LABELS, NAMES)


@pytest.mark.parametrize(
    ("options", "theirs"),
    [
        ({}, {}),
        ({"label_smoothing": 0.2}, {"label_smoothing": 0.2}),
        ({"class_weights": (1.0, 2.0, 0.5)}, {"weight": torch.tensor([1.0, 2.0, 0.5])}),
        (
            {"class_weights": {"dog": 3.0}, "label_smoothing": 0.1},
            {"weight": torch.tensor([1.0, 3.0, 1.0]), "label_smoothing": 0.1},
        ),
    ],
)
def test_it_is_pytorchs(options, theirs):
    labels = torch.tensor([2, 1])
    assert torch.equal(loss_of(**options)(LOGITS, labels), cross_entropy(LOGITS, labels, **theirs))


def test_balanced_weights_are_inverse_frequencies():
    """Three cats and a dog: 4 / (2 · 3) and 4 / (2 · 1); both classes weigh 2 in all."""
    weights = loss_of(class_weights="balanced").weights
    torch.testing.assert_close(weights, torch.tensor([2 / 3, 2.0, 0.0]))


def test_weights_are_divided_by_their_sum():
    """A cat of weight 2/3 and a dog of weight 2: ¼ and ¾ of the mean."""
    cat, dog = (-LOGITS.log_softmax(1)[i, i] for i in (0, 1))
    loss = loss_of(class_weights="balanced")(LOGITS, torch.tensor([0, 1]))
    torch.testing.assert_close(loss, 0.25 * cat + 0.75 * dog)


def test_balanced_softmax_by_hand():
    """−log (n_y e^z_y / Σ_j n_j e^z_j) with n = (3, 1, 0), of the label dog."""
    loss = loss_of(loss="balanced_softmax")(LOGITS[:1], torch.tensor([1]))
    assert float(loss) == pytest.approx(-math.log(1 / (3 * math.e + 1)))


def test_balanced_softmax_leaves_absent_classes_alone():
    logits = LOGITS.clone().requires_grad_()
    (slope,) = torch.autograd.grad(
        loss_of(loss="balanced_softmax")(logits, torch.tensor([1, 0])), logits
    )
    assert slope.isfinite().all()
    assert not slope[:, 2].any()
    assert slope[:, :2].all()


@every_loss
def test_several_clients_losses_are_each_ones_own(options):
    """Batches of 4, 1 and 3 examples, clients with other labels; gradients, too."""
    rng = torch.Generator().manual_seed(0)
    labels = [torch.tensor(x) for x in ([0, 1, 1, 2], [2], [0, 0, 1])]
    losses = [Loss.of(LossConfig(**options), own, NAMES) for own in labels]
    logits = [torch.randn(len(own), 3, generator=rng).requires_grad_() for own in labels]
    together = mean_losses(
        losses,
        pad_sequence(logits, batch_first=True),
        pad_sequence(labels, batch_first=True, padding_value=NO_LABEL),
    )
    alone = [loss(z, y) for loss, z, y in zip(losses, logits, labels, strict=True)]
    torch.testing.assert_close(together, torch.stack(alone))
    wanted = torch.autograd.grad(sum(alone), logits)
    for own, other in zip(torch.autograd.grad(together.sum(), logits), wanted, strict=True):
        torch.testing.assert_close(own, other)


@pytest.fixture(scope="module")
def sites():
    """Three clients with 6, 2 and 9 examples of other mixtures of classes."""
    backbone = load_backbone("random:vit-tiny", 32)
    model = AdaptedModel(backbone, AdapterConfig(rank=2), len(NAMES), seed=0)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (17, 3, 32, 32), dtype=np.uint8)
    labels = np.array([0, 0, 0, 0, 1, 2, 1, 1, 2, 2, 2, 0, 2, 2, 1, 2, 2])
    images = ImageSet("noise", pixels, labels, NAMES)
    source = ImageSource(images, backbone.mean, backbone.std, torch.device("cpu"))
    places = np.split(np.arange(17), [6, 8])
    return [
        ExampleSite(i, model, source, ClientData(str(i), own, own, own), batch_size=16, seed=0)
        for i, own in enumerate(places)
    ]


@every_loss
@pytest.mark.parametrize("part", ["both", "head"])
def test_tasks_train_with_it_alone_and_together_and_are_scored_without(sites, options, part):
    loss = TrainingConfig(**options)
    tasks = [replace(site, loss=loss).task(1, "train") for site in sites]
    phi = tasks[0].initial
    batches = [next(task.batches(1)) for task in tasks]
    asked = [Question(t, "grad", (phi, b, part)) for t, b in zip(tasks, batches, strict=True)]
    together = ExampleTask.answer_together(asked)
    for task, batch, other in zip(tasks, batches, together, strict=True):
        inputs, labels = task.examples(batch)
        head = phi.head.clone().requires_grad_()
        logits = task.model.classify(head, task.model.features(phi.adapter, inputs))
        counts = torch.bincount(task.source.labels(task.data.train), minlength=3).float()
        own = Loss.of(loss, task.source.labels(task.data.train), NAMES)
        (slope,) = torch.autograd.grad(own(logits, labels), head)
        assert own.shift is None or torch.equal(own.shift.exp().round(), counts)
        alone = task.grad(phi, batch, part)
        torch.testing.assert_close(alone.head, slope, rtol=1e-4, atol=1e-6)
        assert isinstance(other, Params)
        torch.testing.assert_close(other.flat(), alone.flat(), rtol=1e-3, atol=1e-5)
        assert task.loss(phi, batch) == pytest.approx(own(logits, labels).item(), rel=1e-4)
        plain = float(cross_entropy(logits.detach(), labels))
        assert task.score(phi, "train")["loss"] == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize(
    ("weights", "words"),
    [({"dgo": 2.0}, "unknown class 'dgo'; did you mean 'dog'"), ((1.0, 2.0), "2 numbers for 3")],
)
def test_weights_of_other_classes_are_refused_before_training(sites, weights, words):
    site = replace(sites[0], loss=LossConfig(class_weights=weights))
    with pytest.raises(InputError, match=words):
        site.task(0, "hello")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["training.loss=balanced_softmax", "training.label_smoothing=0.1"], "choose one"),
        (["training.class_weights=inverse"], "balanced"),
        (["training.class_weights=[1.0, 0.0]"], "greater than 0"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        make_config({}, options)


def test_a_config_with_named_weights_survives_being_written():
    config = make_config({"training": {"class_weights": {"dog": 3.0}}})
    assert config.training.class_weights == {"dog": 3.0}
    assert make_config(config.model_dump(exclude_none=True)) == config
