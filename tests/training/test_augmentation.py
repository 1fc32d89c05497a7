"""Augmented training images: what each does, what it is drawn from, and what never sees it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pfedseq.config import make_config
from pfedseq.engines.rendezvous import Question
from pfedseq.errors import InputError
from pfedseq.model.task import ExampleTask
from pfedseq.runs.world import World
from pfedseq.training.augmentations import AUGMENTATIONS, SETS, augmented, crop, erase, flip
from pfedseq.workloads.images.pixels import normalise
from pfedseq.workloads.text.workload import TextWorkload

VALUES = {
    "run": {"methods": ["local"], "seed": 3},
    "data": {
        "name": "digits",
        "num_clients": 2,
        "image_size": 32,
        "max_images_per_client": 40,
        "train_fraction": 0.5,
        "validation_fraction": 0.25,
    },
    "model": {"backbone": "demo"},
    "training": {"batch_size": 8, "augment": ["flip", "crop", "color"]},
}


def image(side=16):
    """A ramp from left to right that no flip or shift leaves as it is."""
    columns = torch.linspace(20, 220, side).round()
    return columns.expand(3, side, side).to(torch.uint8)


def world(*options, **training):
    values = VALUES | {"training": VALUES["training"] | training}
    return World.build(make_config(values, options))


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_each_changes_images_by_its_stream_alone(name):
    """Shape and range stay; another stream gives another image, the same the same."""
    some = [augmented(image(), [name], 0, stream) for stream in range(12)]
    again = [augmented(image(), [name], 0, stream) for stream in reversed(range(12))][::-1]
    assert all(torch.equal(a, b) for a, b in zip(some, again, strict=True))
    assert {one.shape for one in some} == {image().shape}
    assert len({one.numpy().tobytes() for one in some}) > 1
    assert not all(torch.equal(a, augmented(image(), [name], 1, i)) for i, a in enumerate(some))


def test_a_flip_exchanges_left_and_right_half_of_the_time():
    whole = image().float() / 255
    flips = [flip(whole, torch.Generator().manual_seed(i)) for i in range(200)]
    turned = [bool(torch.equal(one, whole.flip(-1))) for one in flips]
    assert all(t or torch.equal(one, whole) for t, one in zip(turned, flips, strict=True))
    assert 70 < sum(turned) < 130


def test_a_crop_shifts_by_whole_pixels_and_repeats_the_edge():
    whole = torch.arange(16.0).expand(3, 16, 16)
    seen = set()
    for i in range(60):
        row = crop(whole, torch.Generator().manual_seed(i))[0, 5]
        shift = int(row[8] - 8)
        assert torch.equal(row, (torch.arange(16.0) + shift).clamp(0, 15))
        seen.add(shift)
    assert seen == {-2, -1, 0, 1, 2}


def test_an_erased_square_is_grey_and_at_most_half_as_wide():
    for i in range(20):
        changed = erase(torch.ones(3, 16, 16), torch.Generator().manual_seed(i))[0] != 1
        height, width = changed.any(1).sum(), changed.any(0).sum()
        assert height == width
        assert 1 <= height <= 8
        assert changed.sum() == height * width


def test_training_sees_them_and_evaluation_does_not():
    """Drawn from (seed, client, round, example): not from the order of the batch."""
    varied, plain = world(), world(augment=[])
    site, batch = varied.sites[1], torch.tensor([4, 0, 7])
    indices = site.data.train[batch.numpy()]
    inputs, labels = site.task(2, "train").examples(batch)
    unchanged = plain.sites[1].task(2, "train").examples(batch)[0]
    assert not torch.equal(inputs, unchanged)
    assert torch.equal(labels, site.source.labels(indices))
    backwards, _ = site.task(2, "train").examples(batch.flip(0))
    assert torch.equal(backwards.flip(0), inputs)
    assert not torch.equal(site.task(3, "train").examples(batch)[0], inputs)
    other = replace(site, client=0).task(2, "train").examples(batch)[0]
    assert not torch.equal(other, inputs)
    task, phi = site.task(2, "evaluate"), varied.model.initial
    for split in ("train", "validation", "test"):
        expected = plain.sites[1].task(2, "evaluate").score(phi, split)
        assert task.score(phi, split) == expected


def test_the_head_phase_sees_the_same_images_as_the_rest_alone_and_together():
    """The features that a round keeps are those of its augmented images."""
    sites, batch = world().sites, torch.tensor([1, 2, 5])
    tasks = [site.task(1, "train") for site in sites]
    phi = tasks[0].initial
    asked = [Question(task, "grad", (phi, batch, "head")) for task in tasks]
    for site, together in zip(sites, ExampleTask.answer_together(asked), strict=True):
        alone = site.task(1, "train").grad(phi, batch, "head")
        whole = site.task(1, "train").grad(phi, batch)
        torch.testing.assert_close(alone.head, whole.head, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(together.head, whole.head, rtol=1e-3, atol=1e-5)


def test_views_are_kept_and_drawn_by_round():
    """Of three views of each image one is shown each round, through the frozen layers."""
    there = world("adapter.layers=last 1", views=3)
    site, batch = there.sites[0], torch.tensor([3, 6])
    source, prefix = site.source, there.model.prefix
    indices = site.data.train[batch.numpy()]
    shown: list[set[int]] = [set(), set()]
    for t in range(1, 25):
        inputs = site.task(t, "train").examples(batch)[0]
        for place, i in enumerate(indices):
            raw = torch.from_numpy(np.array(source.images.images[i]))
            names = there.config.training.augment
            pixels = [augmented(raw, names, 3, "view", int(i), v) for v in range(3)]
            with torch.no_grad():
                views = prefix(normalise(torch.stack(pixels), source.mean, source.std))
            distances = (views - inputs[place]).abs().amax((1, 2))
            assert distances.min() < 1e-4
            shown[place].add(int(distances.argmin()))
    assert shown == [{0, 1, 2}, {0, 1, 2}]


def test_frozen_layers_can_be_run_anew_in_every_round():
    there = world("adapter.layers=last 1", "model.tokens=none")
    site, batch = there.sites[0], torch.tensor([3, 6])
    first, second = (site.task(t, "train").examples(batch)[0] for t in (1, 2))
    assert first.shape == site.source.inputs(site.data.train[batch.numpy()]).shape
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["adapter.layers=last 1"], "set training.views = 4"),
        (["training.views=4"], "no such layers"),
    ],
)
def test_views_belong_to_frozen_layers(options, words):
    with pytest.raises(InputError, match=words):
        world(*options)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"augment": ["flap"]}, "'flap' is neither an augmentation"),
        ({"augment": "gentle"}, "nor a set"),
        ({"views": 2}, "views needs augmented images"),
    ],
)
def test_what_is_not_known_is_refused(given, words):
    with pytest.raises(InputError, match=words):
        make_config({"training": given})


def test_texts_are_not_augmented():
    values = {"data": {"name": "text", "source": "notes.csv"}, "model": {"backbone": "bert"}}
    config = make_config(values)
    training = config.training.model_copy(update={"augment": ("flip",)})
    with pytest.raises(InputError, match=r"training\.augment only applies to images"):
        TextWorkload.check(config.model_copy(update={"training": training}))


@pytest.mark.parametrize("name", SETS)
def test_a_set_stands_for_its_members(name):
    config = make_config({"training": {"augment": name}})
    assert config.training.augment == SETS[name]
    assert make_config(config.model_dump(exclude_none=True)) == config
