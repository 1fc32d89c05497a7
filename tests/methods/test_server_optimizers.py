"""Servers that learn do so with Adam at their own rate, from weights that the seed decides."""

import dataclasses

import pytest
import torch

from pfedseq.methods import METHODS
from tests.toys import make_setup, random_centers

CENTERS, SIZES = random_centers(3), (4, 2, 3)
RATES = {"pfedseq": "learner_lr", "pfedhn": "hypernet_lr", "pfedla": "hypernet_lr"}
RATES["pefll"] = "hypernet_lr"
NETWORKS = {"pfedseq": "learner", "pfedhn": "generator", "pfedla": "hypernets", "pefll": "f"}

learning = pytest.mark.parametrize("name", RATES)


def server_of(name, seed=0, **options):
    method = METHODS[name]
    setup = dataclasses.replace(make_setup(CENTERS, SIZES), seed=seed)
    return method.server(method.config(**options), setup)


@learning
def test_adam_has_the_servers_own_rate(name):
    server = server_of(name, lr=0.3, **{RATES[name]: 0.0123})
    assert isinstance(server.optimizer, torch.optim.Adam)
    assert {group["lr"] for group in server.optimizer.param_groups} == {0.0123}
    moved = {id(p) for group in server.optimizer.param_groups for p in group["params"]}
    assert {id(p) for p in getattr(server, NETWORKS[name]).parameters()} <= moved


@learning
def test_the_seed_decides_the_first_weights(name):
    def weights(seed):
        network = getattr(server_of(name, seed), NETWORKS[name])
        return torch.cat([p.detach().flatten() for p in network.parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))
