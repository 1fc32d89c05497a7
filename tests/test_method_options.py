"""A config that names every method survives being resolved, written and read again."""

import tomllib

import pytest

from pfedseq.config import dump_config, make_config
from pfedseq.errors import InputError
from pfedseq.methods import METHODS


def test_every_methods_options_survive_the_toml():
    config = make_config({"run": {"methods": list(METHODS)}})
    again = make_config(tomllib.loads(dump_config(config)))
    assert again == config
    for name in METHODS:
        common = {"head_lr": config.training.head_lr, "head": config.training.head}
        assert again.method_config(name) == METHODS[name].config(**common)


def test_the_auxiliary_set_is_a_section_of_its_own():
    values = {"auxiliary": {"name": "cifar10", "source": "somewhere", "num_images": 10}}
    config = make_config(values, ["auxiliary.num_images=20"])
    assert config.auxiliary.num_images == 20
    assert make_config(tomllib.loads(dump_config(config))).auxiliary == config.auxiliary
    with pytest.raises(InputError, match=r"auxiliary\.nmae"):
        make_config({"auxiliary": {"nmae": "cifar10"}})
    with pytest.raises(InputError, match="needs source"):
        make_config({"auxiliary": {"name": "folder"}})
