from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier

from pfedseq.data import DataConfig, load_data
from pfedseq.data.dataset import ClientData
from pfedseq.data.digits import _read_digits, digits_images, draw_styles, scan_for_clients
from pfedseq.errors import InputError


def test_digits_are_all_there_at_the_asked_size():
    images = digits_images(32)
    assert images.images.shape == (1797, 3, 32, 32)
    assert images.images.dtype == np.uint8
    assert np.bincount(images.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (images.images[:, 0] == images.images[:, 2]).all()
    # The 4-pixel margin is black and the ink lies inside.
    assert images.images[:, :, :4].max() == 0
    assert images.images[:, :, 4:-4, 4:-4].max() == 255


def test_styles_are_spread_over_their_range_under_every_seed():
    for seed in range(5):
        styles = draw_styles(10, seed, 27.0)
        rotations = sorted(style.rotation for style in styles)
        np.testing.assert_allclose(rotations, np.linspace(-27, 27, 10), atol=1e-9)
        assert min(style.contrast for style in styles) == pytest.approx(0.6)
    assert draw_styles(10, 1, 9.0) == draw_styles(10, 1, 9.0) != draw_styles(10, 2, 9.0)


def test_scanners_turn_as_far_as_they_are_told():
    """Ink of a digit that is turned less lies nearer to where it lay."""
    straight, little, much = (
        load_data(DataConfig(scanner_turn=turn), seed=0).examples.images.astype(float)
        for turn in (0.0, 10.0, 60.0)
    )
    assert np.abs(little - straight).mean() < 0.5 * np.abs(much - straight).mean()


def test_clients_share_scanners_in_turn():
    """With three scanners, clients 0 and 3 have the same one: pages differ in their grain alone."""
    images = digits_images(16)
    pages = replace(images, images=np.repeat(images.images[:1], 6, 0), labels=images.labels[:6])
    none = np.arange(0)
    clients = [ClientData(f"{i:02}", np.array([i]), none, none) for i in range(6)]

    def apart(one, other, num_scanners):
        scanned = scan_for_clients(pages, clients, 3, 80.0, num_scanners).images.astype(float)
        return np.abs(scanned[one] - scanned[other]).mean()

    assert apart(0, 3, 3) < 10 < 20 < apart(0, 1, 3)
    assert apart(2, 5, 3) < 10
    assert apart(0, 3, None) > 20, "by default each has its own"
    with pytest.raises(ValidationError, match="needs scanners = true"):
        DataConfig(num_scanners=2, scanners=False)


def test_the_demo_scenario_deals_evenly_and_is_a_function_of_the_seed():
    data = load_data(DataConfig(), seed=4)
    assert len(data.clients) == 10
    everything = np.concatenate([[*c.train, *c.validation, *c.test] for c in data.clients])
    np.testing.assert_array_equal(np.sort(everything), np.arange(1797))
    for client in data.clients:
        assert (len(client.train), len(client.test)) == (121, 45)
        assert np.bincount(data.examples.labels[client.train], minlength=10).min() >= 5
    again, other = load_data(DataConfig(), seed=4), load_data(DataConfig(), seed=5)
    np.testing.assert_array_equal(data.examples.images, again.examples.images)
    assert (data.examples.images != other.examples.images).any()
    fixed = load_data(DataConfig(partition_seed=4), seed=5)
    np.testing.assert_array_equal(data.examples.images, fixed.examples.images)


def test_all_scanners_give_dark_ink_on_light_paper():
    data = load_data(DataConfig(), seed=0)
    for client in data.clients:
        pages = data.examples.images[client.train, 0]
        paper, middle = pages[:, :3].mean(), pages[:, 12:20, 12:20].mean()
        assert paper > 127
        assert paper > middle + 10


def test_one_shared_linear_model_does_worse_than_each_scanners_own():
    data = load_data(DataConfig(), seed=0)
    pixels = data.examples.images[:, 0].reshape(1797, -1) / 255.0
    labels = data.examples.labels

    def mean_accuracy(models):
        return np.mean(
            [
                model.score(pixels[client.test], labels[client.test])
                for model, client in zip(models, data.clients, strict=True)
            ]
        )

    def trained_on(images):
        return RidgeClassifier(alpha=10.0).fit(pixels[images], labels[images])

    own = mean_accuracy([trained_on(client.train) for client in data.clients])
    shared = trained_on(np.concatenate([client.train for client in data.clients]))
    assert own > 0.8
    assert mean_accuracy([shared] * 10) < own - 0.05  # though it has ten times the images


def test_label_skew_without_scanners_leaves_the_pixels_alone():
    data = load_data(DataConfig(partition="dirichlet", scanners=False), seed=1)
    np.testing.assert_array_equal(data.examples.images, digits_images(32).images)
    classes = [len(np.unique(data.examples.labels[client.train])) for client in data.clients]
    assert np.mean(classes) < 6
    assert min(len(c.train) + len(c.validation) + len(c.test) for c in data.clients) >= 40


def test_small_runs_keep_a_part_of_every_client():
    data = load_data(DataConfig(max_images_per_client=40), seed=0)
    sizes = {(len(c.train), len(c.validation), len(c.test)) for c in data.clients}
    assert sizes == {(27, 3, 10)}


def test_bad_sections_are_refused_in_one_sentence():
    with pytest.raises(InputError, match="5000 clients cannot share 1797 examples"):
        load_data(DataConfig(num_clients=5000), seed=0)
    with pytest.raises(
        InputError, match="client 00 has 2 examples, which leaves none for training"
    ):
        load_data(DataConfig(num_clients=1000), seed=0)
    with pytest.raises(InputError, match="digits does not name the owners of its images"):
        load_data(DataConfig(partition="owners"), seed=0)
    with pytest.raises(InputError, match="no test images to keep"):
        load_data(DataConfig(keep_test_split=True), seed=0)
    with pytest.raises(InputError, match=r"seed is -1"):
        load_data(DataConfig(), seed=-1)
    for wrong, sentence in [
        ({"name": "cifar100", "scanners": True}, "only apply to digits"),
        ({"split_owners": 2}, "needs partition = 'owners'"),
        ({"name": "folder"}, "needs source"),
        ({"name": "folder", "source": "x", "layout": "domain/class"}, "unknown level 'domain'"),
        ({"name": "folder", "source": "x", "layout": "owner"}, "class exactly once"),
        ({"min_samples": 50, "max_images_per_client": 40}, "more than max_images_per_client = 40"),
        ({"alpha": 0}, "greater than 0"),
        ({"scanner_turn": 91}, "less than or equal to 90"),
        ({"colour": 1}, "not permitted"),
    ]:
        with pytest.raises(ValidationError, match=sentence):
            DataConfig(**wrong)


@pytest.mark.parametrize(
    ("name", "partition", "num_clients", "size"),
    [
        ("digits", "iid", 10, 32),
        ("cifar100", "dirichlet", 10, 224),
        ("tiny_imagenet", "dirichlet", 10, 224),
        ("domainnet", "owners", None, 224),
        ("omniglot", "owners", None, 224),
    ],
)
def test_a_bare_name_means_the_papers_scenario(name, partition, num_clients, size):
    config = DataConfig(name=name)
    assert (config.partition, config.num_clients) == (partition, num_clients)
    assert config.side == size
    assert (config.alpha, config.train_fraction, config.validation_fraction) == (0.1, 0.75, 0.1)
    assert bool(config.keep_test_split) is (name == "domainnet")
    assert DataConfig(**config.model_dump()) == config


def test_the_file_is_read_as_scikit_learn_reads_it():
    bundle, (images, labels) = load_digits(), _read_digits()
    assert np.array_equal(images, bundle.images)
    assert np.array_equal(labels, bundle.target)
