"""The order of batches depends on the seed, the client, the round and the step, and so it must."""

from dataclasses import replace

import numpy as np
import pytest

from pfedseq.config import make_config
from pfedseq.params import Params
from pfedseq.runs.world import World


@pytest.fixture(scope="module")
def world():
    data = {"num_clients": 2, "max_images_per_client": 40, "train_fraction": 0.5}
    return World.build(
        make_config(
            {"data": data, "training": {"batch_size": 4}, "engine": {"device": "cpu"}},
            ["run.methods=['fedavg']"],
        )
    )


def order(site, t=1, step="train"):
    return [batch.tolist() for batch in site.task(t, step).batches(1)]


def test_seed_client_round_and_step_each_count(world):
    site = world.sites[0]
    assert order(site) == order(site)
    others = [
        order(replace(site, seed=site.seed + 1)),
        order(replace(site, client=site.client + 1)),
        order(site, t=2),
        order(site, step="describe"),
    ]
    assert len({str(batches) for batches in [order(site), *others]}) == 5


def test_sites_are_built_with_the_runs_seed_and_their_own_number(world):
    assert [site.client for site in world.sites] == [0, 1]
    assert {site.seed for site in world.sites} == {world.config.run.seed}


def test_each_split_is_scored_on_its_own_examples(world):
    """A head that names the label of a split's first half of examples scores by that split."""
    site, model = world.sites[0], world.model
    phi = Params(model.initial.adapter, 20 * model.initial.head)
    task = site.task(1, "evaluate")
    scores = {split: task.score(phi, split) for split in ("train", "validation", "test")}
    for split, score in scores.items():
        assert score.num_examples == len(getattr(site.data, split))
    assert len({score["loss"] for score in scores.values()}) == 3


def test_the_server_weighs_by_training_examples(world):
    server, _ = world.start("fedavg")
    sizes = [len(client.train) for client in world.data.clients]
    assert list(server.setup.num_examples) == sizes
    assert sizes != [len(client.test) for client in world.data.clients]
    assert np.array(sizes).min() > 0
