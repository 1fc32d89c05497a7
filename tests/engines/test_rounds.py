"""The round loop: what is evaluated is what the round made."""

import pytest
import torch

from pfedseq.engines.local import LocalClients
from pfedseq.engines.rounds import run_rounds
from pfedseq.methods import METHODS
from pfedseq.params import Params
from tests.toys import QuadraticTask, make_setup, quadratic_federation, random_centers

CENTERS, SIZES, LR = random_centers(2), (1, 3), 0.25


def fedavg():
    method, config = METHODS["fedavg"], METHODS["fedavg"].config(lr=LR)
    clients = LocalClients(method.client, config, quadratic_federation(CENTERS, SIZES))
    return method.server(config, make_setup(CENTERS, SIZES)), clients


def test_the_new_payload_is_evaluated_and_not_the_one_before():
    """From 0, one round of FedAvg leads to η c̄, whose loss at each client is known."""
    server, clients = fedavg()
    outcomes = []
    run_rounds(server, clients, range(1, 2), outcomes.append)
    (outcome,) = outcomes
    mean = 0.25 * CENTERS[0] + 0.75 * CENTERS[1]
    for i, center in enumerate(CENTERS):
        expected = QuadraticTask(center).score(LR * mean, "test")
        assert outcome.evaluated[i]["test_loss"] == pytest.approx(expected["loss"])
        start = Params(torch.zeros_like(center.adapter), torch.zeros_like(center.head))
        before = QuadraticTask(center).score(start, "test")
        assert outcome.evaluated[i]["test_loss"] != pytest.approx(before["loss"])


def test_bytes_are_those_of_the_tensors_that_pass():
    """Two clients, θ and ω of 2·5 + 3 floats of 4 bytes, once down and once up."""
    server, clients = fedavg()
    outcomes = []
    run_rounds(server, clients, range(1, 3), outcomes.append, evaluate_every=2)
    assert [o.bytes_down for o in outcomes] == [2 * 13 * 4] * 2
    assert [o.bytes_up for o in outcomes] == [2 * 13 * 4] * 2
    assert [bool(o.evaluated) for o in outcomes] == [False, True]
    assert all(o.client_seconds > 0 and o.server_seconds > 0 for o in outcomes)
