"""A run finds its auxiliary images when a method needs them, and not before."""

from dataclasses import replace

import pytest

from pfedseq.config import make_config
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
