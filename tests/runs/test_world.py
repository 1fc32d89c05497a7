"""From a config to a world: what reaches model and sites, and auxiliary images when needed."""

from dataclasses import replace

import pytest

from pfedseq.config import TrainingConfig, make_config
from pfedseq.errors import InputError
from pfedseq.runs.world import World


def config_of(method, **auxiliary):
    return make_config(
        {
            "run": {"methods": [method]},
            "model": {"backbone": "random:vit-tiny"},
            "engine": {"device": "cpu"},
            "auxiliary": auxiliary,
        }
    )


def test_a_world_built_for_one_method_serves_another():
    """`compare` builds the world once, for its first method, and runs the others in it."""
    world = World.build(config_of("local", num_images=3))
    server, _ = world.start("local")
    assert server.setup.auxiliary is None
    server, _ = replace(world, config=config_of("perada", num_images=3)).start("perada")
    (batch,) = server.auxiliary.batches(t=1, count=1, size=3)
    assert batch.shape == (3, 3, 32, 32)


def test_missing_images_are_missed_at_once_and_only_where_needed(tmp_path):
    nowhere = {"name": "folder", "source": str(tmp_path / "nowhere")}
    with pytest.raises(InputError, match="nowhere"):
        World.build(config_of("perada", **nowhere))
    World.build(config_of("local", **nowhere))


def test_the_heads_rate_and_the_rounds_examples_are_the_configs():
    """A world serves runs with other rates of the same ratio, and no others."""

    def config(lr, head_lr, examples):
        training = {"lr": lr, "head_lr": head_lr, "examples_per_round": examples}
        return config_of("local").model_copy(update={"training": TrainingConfig(**training)})

    world = World.build(config(0.1, 0.004, 5))
    assert world.model.head_unit**2 == pytest.approx(0.04)
    assert [len(site.drawn(1)) for site in world.sites] == [5] * 10
    assert world.serves(config(0.05, 0.002, 5))
    assert not world.serves(config(0.1, 0.008, 5))
    assert not world.serves(config(0.1, None, 5))
    assert not world.serves(config(0.1, 0.004, 6))
    assert World.build(config(0.1, None, None)).model.head_unit == 1
