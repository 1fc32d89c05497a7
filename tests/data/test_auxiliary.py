"""The images PerAda distils on: generated ones, and those of a data set."""

import numpy as np
import pytest
from pydantic import ValidationError

from pfedseq.data.auxiliary import AuxiliaryConfig, load_auxiliary


def test_generated_images_are_a_function_of_the_seed():
    config = AuxiliaryConfig(num_images=7)
    first, again, other = (load_auxiliary(config, 64, seed) for seed in (0, 0, 1))
    assert first.images.shape == (7, 3, 32, 32)
    assert first.images.dtype == np.uint8
    assert np.array_equal(first.images, again.images)
    assert not np.array_equal(first.images, other.images)


def test_generated_images_use_the_whole_range_and_differ():
    images = load_auxiliary(AuxiliaryConfig(num_images=600), 32, 0).images
    assert len(images) == 600, "more than are drawn at once"
    assert images.max() > 200
    assert images.min() < 20
    assert len(np.unique(images.reshape(600, -1), axis=0)) == 600


def test_a_part_of_a_data_set_is_drawn_without_repeats():
    every = load_auxiliary(AuxiliaryConfig(name="digits"), 16, 0)
    some = load_auxiliary(AuxiliaryConfig(name="digits", num_images=50), 16, 0)
    other = load_auxiliary(AuxiliaryConfig(name="digits", num_images=50), 16, 1)
    assert every.images.shape == (1797, 3, 16, 16)
    assert some.images.shape == (50, 3, 16, 16)
    assert not np.array_equal(some.labels, other.labels)
    rows = {image.tobytes() for image in every.images}
    assert all(image.tobytes() in rows for image in some.images)


def test_cifar_is_kept_small_and_other_images_at_the_backbones_size(tmp_path):
    assert AuxiliaryConfig(name="cifar10").data_config(224).image_size == 32
    folder = AuxiliaryConfig(name="folder", source=str(tmp_path), layout="split/class")
    assert folder.data_config(224).image_size == 224
    assert folder.data_config(224).source == str(tmp_path)
    assert folder.data_config(224).layout == "split/class"


def test_a_folder_without_a_place_is_refused():
    with pytest.raises(ValidationError, match="needs source"):
        AuxiliaryConfig(name="folder")
