"""The packaged demo backbone: small, loadable without a network, and a real feature extractor."""

import torch
from pretraining.probe import digit_probe_accuracies
from pretraining.training import PretrainingSettings, new_model

from pfedseq.model.backbone import DEMO_FOLDER, load_backbone


def test_package_carries_at_most_three_megabytes() -> None:
    files = {path.name: path.stat().st_size for path in DEMO_FOLDER.iterdir()}
    assert files.keys() == {"config.json", "model.safetensors", "preprocessor_config.json"}
    assert sum(files.values()) <= 3_000_000


def test_architecture_is_the_one_that_pretraining_makes() -> None:
    demo, fresh = load_backbone("demo"), new_model(PretrainingSettings())
    shapes = {key: value.shape for key, value in demo.model.state_dict().items()}
    assert shapes == {key: value.shape for key, value in fresh.state_dict().items()}
    assert (demo.image_size, demo.mean, demo.std) == (32, (0.5,) * 3, (0.5,) * 3)
    assert all(value.isfinite().all() for value in demo.model.state_dict().values())


def test_random_demo_is_where_pretraining_started() -> None:
    fresh = new_model(PretrainingSettings()).state_dict()
    random = load_backbone("random:demo", seed=0).model.state_dict()
    assert all(torch.equal(fresh[key], random[key]) for key in fresh)


def test_linear_probe_on_digits_beats_random_initialisation() -> None:
    """By far with few labels; with many, even random features separate most digits."""
    many, few = digit_probe_accuracies(load_backbone("demo"))
    random_many, random_few = digit_probe_accuracies(load_backbone("random:demo"))
    print(f"demo {many:.3f} {few:.3f}, random {random_many:.3f} {random_few:.3f}")
    assert many > random_many + 0.03
    assert few > random_few + 0.10
