"""Per-FedAvg in closed form on L(φ) = ½ ‖φ − c‖², and batch by batch on scattered points."""

import tomllib

import pytest
import torch

from pfedseq.config import dump_config, make_config
from pfedseq.methods import METHODS
from pfedseq.methods.per_fedavg import PerFedAvgClient, PerFedAvgConfig, double_batches
from pfedseq.params import Params
from pfedseq.training.config import Units
from tests.toys import (
    QuadraticTask,
    RecordingTask,
    ScatteredTask,
    personal_models,
    play,
    random_centers,
)

CENTERS = random_centers(2)
SIZES = (1, 3)  # weights 1/4 and 3/4


def scattered(num_examples: int, batch_size: int = 2) -> ScatteredTask:
    order = torch.Generator().manual_seed(5)
    return ScatteredTask(CENTERS[0], num_examples, batch_size=batch_size, order=order)


def test_two_steps_in_one():
    """The inner step leads to u − c = (1 − α)(φ − c), which is also the gradient there, so

        φ' − c = (1 − β (1 − α)) (φ − c).

    Four batches are two such meta-steps; three rounds from 0 contract to the weighted mean c̄ of
    the clients by r^6 with r = 1 − 0.25 · (1 − 0.4) = 0.85. A client's personal model is then
    φ − α (φ − c_i).
    """
    config = PerFedAvgConfig(lr=0.25, inner_lr=0.4)
    server, clients = play(METHODS["per_fedavg"], config, CENTERS, SIZES, 3, num_batches=4)
    mean = 0.25 * CENTERS[0] + 0.75 * CENTERS[1]
    phi = (1 - 0.85**6) * mean
    down = {i: server.payload(i) for i in range(2)}
    torch.testing.assert_close(down[0]["adapter"], phi.adapter)
    torch.testing.assert_close(down[1]["head"], phi.head)
    for i, saved in personal_models(clients, 3, down).items():
        personal = phi - 0.4 * (phi - CENTERS[i])
        torch.testing.assert_close(saved.adapter, personal.adapter)
        torch.testing.assert_close(saved.head, personal.head)
        scored = clients.call("evaluate", 3, {i: down[i]})[i].metrics["test_loss"]
        expected = clients.sites[i].task(3, "evaluate").score(personal, "test")
        assert scored == pytest.approx(expected["loss"])


def test_each_half_of_a_meta_step_has_its_own_batch():
    """With m_B the mean of a batch: φ' = φ − β (φ − α (φ − m_B) − m_B'), B first, then B'."""
    task = scattered(4)
    first, second = scattered(4).batches(1)
    client = PerFedAvgClient(PerFedAvgConfig(lr=0.25, inner_lr=0.4), task, {})
    phi = random_centers(1, seed=1)[0]
    reply = client.train({"adapter": phi.adapter, "head": phi.head})
    start, points = phi.flat(), task.points()
    m1, m2 = points[first].mean(0), points[second].mean(0)
    expected = start - 0.25 * (start - 0.4 * (start - m1) - m2)
    torch.testing.assert_close(Params(**reply.tensors).flat(), expected)


def test_every_example_is_used_once_a_pass():
    """An odd last batch is halved; pairs never reach over the end of a pass."""
    pairs = list(double_batches(scattered(11, batch_size=4), epochs=2))
    assert [(len(a), len(b)) for a, b in pairs] == [(4, 4), (2, 1)] * 2
    for epoch in (pairs[:2], pairs[2:]):
        assert sorted(torch.cat([torch.cat(pair) for pair in epoch]).tolist()) == list(range(11))


def test_a_client_with_one_example_still_trains():
    ((first, second),) = double_batches(scattered(1), epochs=1)
    assert first.tolist() == second.tolist() == [0]


def test_the_tested_model_has_seen_one_training_batch():
    task = RecordingTask(scattered(6))
    client = PerFedAvgClient(PerFedAvgConfig(lr=0.25), task, {})
    phi = random_centers(1, seed=1)[0]
    personal = client.personal({"adapter": phi.adapter, "head": phi.head})
    ((asked_at, batch),) = task.asked
    assert torch.equal(asked_at.flat(), phi.flat())
    assert len(batch) == 2
    expected = phi.flat() - 0.25 * (phi.flat() - task.points()[batch].mean(0))
    torch.testing.assert_close(personal.flat(), expected)


def test_one_rate_serves_both_steps_unless_told_otherwise():
    assert PerFedAvgConfig(lr=0.3).adaptation_rate == 0.3
    assert PerFedAvgConfig(lr=0.3, inner_lr=0.1).adaptation_rate == 0.1


def test_a_rate_that_is_not_given_is_left_out_of_the_saved_config():
    config = make_config(
        {"run": {"methods": ["per_fedavg"]}, "training": {"lr": 0.3, "head_lr": 0.6}}
    )
    saved = make_config(tomllib.loads(dump_config(config)))
    inherited = {"head": "both", "head_momentum": 0.8, "max_step": 4}
    expected = PerFedAvgConfig(lr=0.3, head_lr=0.6, **inherited)
    assert saved.method_config("per_fedavg") == expected


@pytest.mark.parametrize(("bound", "factor"), [(1.0, 1 / 2.5), (2.5, 1), (0.0, 1)])
def test_an_own_plain_step_is_bounded_at_its_own_rate(bound, factor):
    """At α = 0.5, ω at twice that: 0.5 · 8 / 2 = 2 and 1 · 6 / 4 = 1.5 in units of the model."""
    config = PerFedAvgConfig(lr=8.0, head_lr=16.0, inner_lr=0.5, max_step=bound)
    task = QuadraticTask(Params(torch.zeros(1, 4), torch.zeros(3)))
    task.units = Units(adapter=2.0, feature=4.0, classes=9)
    gradient = Params(torch.tensor([[8.0, 0, 0, 0]]), torch.tensor([0, 6.0, 0]))
    client = PerFedAvgClient(config, task, {})
    step = client.descend(task.initial, gradient, config.adaptation_rate) - task.initial
    torch.testing.assert_close(step.adapter[0, 0], torch.tensor(-factor * 8 * 0.5 / 2**2))
    torch.testing.assert_close(step.head[1], torch.tensor(-factor * 6 * 3.0 / 4**2))
