"""A deployment of processes, stopped at the end of a test."""

import pytest


@pytest.fixture
def deployed(tmp_path):
    from tests.deployment.processes import Deployment  # needs flwr, unlike other tests

    made = []

    def make(*arguments, **flower):
        deployment = Deployment(tmp_path, **flower)
        made.append(deployment)
        deployment.pfedseq("up", "--clients", 2, *arguments)
        return deployment

    yield make
    for deployment in made:
        deployment.pfedseq("down")
        assert all(one.process() is None for one in deployment.loopback.started())
