"""From a config to a world: what reaches model and sites, and auxiliary images when needed."""

from dataclasses import replace

import pytest
import torch

from pfedseq.config import TrainingConfig, make_config
from pfedseq.engines.local import LocalClients
from pfedseq.engines.roster import Roster
from pfedseq.engines.states import MemoryStates
from pfedseq.errors import InputError
from pfedseq.methods import METHODS
from pfedseq.runs.world import _ENGINES, World
from pfedseq.workloads import find_workload


def config_of(method, **auxiliary):
    return make_config(
        {
            "run": {"methods": [method]},
            "data": {"image_size": 32},
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


def test_the_seed_decides_the_start_and_the_classes_its_head():
    def start(seed, classes=3):
        config = config_of("local")
        run = config.run.model_copy(update={"seed": seed})
        seeded = config.model_copy(update={"run": run})
        return find_workload(config.data).load(seeded, classes).model.initial.tensors()

    first, again, other = start(0), start(0), start(1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
    assert start(0, classes=4)["head"].shape != first["head"].shape


def test_the_normalisation_is_the_configs():
    chosen = {"backbone": "random:vit-tiny", "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    model = config_of("local").model.model_copy(update=chosen)
    config = config_of("local").model_copy(update={"model": model})
    world = World.build(config)
    for site in world.sites:
        assert site.source.mean == (0.1, 0.2, 0.3)
        assert site.source.std == (0.4, 0.5, 0.6)
    written = world.written_out(config_of("local")).model
    assert (written.mean, written.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def test_the_server_is_told_who_is_there_in_the_first_round():
    """Of ten clients the last three come later, and the first two have left before."""
    conditions = {"late_clients": 0.3, "late_round": 2, "leaving_clients": 0.2}
    federation = config_of("local").federation.model_copy(
        update={**conditions, "aggregation": "trimmed_mean", "trim": 0.2}
    )
    world = World.build(config_of("local").model_copy(update={"federation": federation}))
    server, clients = world.start("local")
    roster = Roster(clients, server, federation)
    assert server.setup.clients == tuple(roster.participants(1)) == (2, 3, 4, 5, 6)
    sizes = [len(client.train) for client in world.data.clients[2:7]]
    assert list(server.setup.num_examples) == sizes
    assert (server.setup.aggregation, server.setup.trim) == ("trimmed_mean", 0.2)
    assert (server.setup.num_rounds, server.setup.seed) == (world.config.run.rounds, 0)
    assert server.setup.num_classes == 10
    assert server.setup.initial is world.model.initial


def test_the_engine_is_given_what_the_config_says(monkeypatch):
    given = {}

    class Noted(LocalClients):
        def __init__(self, client, config, sites, **options):
            given.update(options, client=client, config=config, sites=sites)
            super().__init__(client, config, sites, **options)

    monkeypatch.setitem(_ENGINES, "wire", Noted)
    chosen = [
        "engine.kind=wire",
        "engine.threads=3",
        "engine.clients_per_pass=4",
        "federation.payload=int8",
    ]
    plain = config_of("ditto").model_dump(exclude_none=True)
    world = World.build(make_config(plain, chosen))
    states = MemoryStates()
    world.start("ditto", states)
    assert given.pop("states") is states
    assert given.pop("client") is METHODS["ditto"].client
    assert given.pop("config") == world.config.method_config("ditto")
    assert given.pop("sites") == list(world.sites)
    threads = {"threads": 3, "threads_per_client": 1}
    private = {"privacy": None}
    assert given == {**threads, "clients_per_pass": 4, "payload": "int8", "copies": [], **private}


def test_the_rounds_examples_are_the_configs():
    """A world serves runs with other rates, and none with other examples."""

    def config(lr, head_lr, examples):
        training = {"lr": lr, "head_lr": head_lr, "examples_per_round": examples}
        return config_of("local").model_copy(update={"training": TrainingConfig(**training)})

    world = World.build(config(0.1, 0.004, 5))
    assert [len(site.drawn(1)) for site in world.sites] == [5] * 10
    assert world.serves(config(0.05, 0.002, 5))
    assert world.serves(config(0.1, None, 5))
    assert not world.serves(config(0.1, 0.004, 6))
