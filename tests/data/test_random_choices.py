"""What is kept, and what is held out, is drawn, not the first or the last that comes."""

import numpy as np

from pfedseq.data.config import DataConfig
from pfedseq.data.dataset import ImageSet
from pfedseq.data.loading import deal
from pfedseq.data.partition import split_as_given, split_at_random


def test_the_images_that_are_kept_are_drawn():
    """An owner's 400 images come in the order of the source; 40 are kept of all over it."""
    images = ImageSet(
        "drawn",
        np.zeros((400, 3, 8, 8), np.uint8),
        np.arange(400) % 2,
        ("a", "b"),
        owners=np.zeros(400, np.int64),
        owner_names=("one",),
    )
    few = DataConfig(name="pacs", partition="owners", max_images_per_client=40)
    kept, other = (
        {int(i) for part in (c.train, c.validation, c.test) for i in part}
        for seed in (0, 1)
        for c in deal(images, few, seed)
    )
    assert len(kept) == 40
    assert kept != other
    assert max(kept) > 300
    assert min(kept) < 100


def held_out(split, seed):
    rng = np.random.RandomState(seed)
    images = np.arange(100, 160)
    if split == "given":
        is_test = np.arange(200) >= 150
        return split_as_given("0", images, is_test, rng, validation_fraction=0.2)
    return split_at_random("0", images, rng, train_fraction=0.75, validation_fraction=0.2)


def test_validation_is_drawn_from_the_training_images():
    for split in ("given", "random"):
        first, second = held_out(split, 0), held_out(split, 1)
        assert set(first.validation) != set(second.validation), split
        assert not set(first.validation) & (set(first.train) | set(first.test))
        train = np.sort(np.concatenate([first.train, first.validation]))
        assert set(first.validation) != set(train[-len(first.validation) :])
        assert set(first.validation) != set(train[: len(first.validation)])
