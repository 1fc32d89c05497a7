"""Local, FedAvg and FedRep in closed form on L_i(φ) = ½ ‖φ − c_i‖².

One SGD step from φ with rate η gives φ + η (c_i − φ): a contraction by (1 − η) towards c_i.
"""

import pytest
import torch

from pfedseq.methods import METHODS
from pfedseq.params import Params
from tests.toys import QuadraticTask, play, random_centers

CENTERS = random_centers(2)
SIZES = (1, 3)  # weights 1/4 and 3/4
LR = 0.25


def config(name, **options):
    return METHODS[name].config(lr=LR, **options)


def test_local_contracts_to_its_own_center():
    """From 0, after T rounds of b batches: φ_i = (1 − (1 − η)^{Tb}) c_i."""
    server, clients = play(METHODS["local"], config("local"), CENTERS, SIZES, 3, num_batches=2)
    for i, center in enumerate(CENTERS):
        factor = 1 - (1 - LR) ** 6
        torch.testing.assert_close(clients.states.get(i)["adapter"], factor * center.adapter)
        torch.testing.assert_close(clients.states.get(i)["head"], factor * center.head)
        assert server.payload(i) == {}


def test_fedavg_contracts_to_the_weighted_mean():
    """The mean of contractions is the contraction to c̄ = c_1 / 4 + 3 c_2 / 4."""
    server, clients = play(METHODS["fedavg"], config("fedavg"), CENTERS, SIZES, 3)
    mean = 0.25 * CENTERS[0] + 0.75 * CENTERS[1]
    factor = 1 - (1 - LR) ** 3
    torch.testing.assert_close(server.payload(0)["adapter"], factor * mean.adapter)
    torch.testing.assert_close(server.payload(1)["head"], factor * mean.head)
    assert not any(clients.states.get(i) for i in (0, 1))


def test_fedrep_shares_the_adapter_and_keeps_heads():
    """θ contracts to the weighted mean; ω_i to its own center, `head_epochs` steps a round."""
    options = config("fedrep", head_epochs=2)
    server, clients = play(METHODS["fedrep"], options, CENTERS, SIZES, 3)
    mean = 0.25 * CENTERS[0].adapter + 0.75 * CENTERS[1].adapter
    torch.testing.assert_close(server.payload(0)["adapter"], (1 - (1 - LR) ** 3) * mean)
    assert set(server.payload(0)) == {"adapter"}
    for i, center in enumerate(CENTERS):
        torch.testing.assert_close(clients.states.get(i)["head"], (1 - (1 - LR) ** 6) * center.head)


@pytest.mark.parametrize("name", ["fedavg", "fedrep"])
def test_an_absent_client_does_not_count(name):
    """With only client 1 answering, the average is client 1's model, not diluted by zeros."""
    method = METHODS[name]
    server, clients = play(method, config(name), CENTERS, SIZES, 1)
    replies = clients.call("train", 2, {1: server.payload(1)})
    server.update(2, replies)
    torch.testing.assert_close(server.payload(0)["adapter"], replies[1].tensors["adapter"])


def test_fedrep_moves_the_head_first_and_the_adapter_under_the_new_head():
    """On a loss that couples θ and ω: ω' = ω − η ∇_ω(θ, ω), then θ' = θ − η ∇_θ(θ, ω')."""
    task = QuadraticTask(CENTERS[0], coupling=0.5)
    start = random_centers(1, seed=4)[0]
    state = {"head": start.head}
    method = METHODS["fedrep"]
    reply = method.client(config("fedrep"), task, state).train({"adapter": start.adapter})
    head = start.head - LR * task.grad(start, None).head
    adapter = start.adapter - LR * task.grad(Params(start.adapter, head), None).adapter
    torch.testing.assert_close(state["head"], head)
    torch.testing.assert_close(reply.tensors["adapter"], adapter)
    assert not torch.allclose(adapter, start.adapter - LR * task.grad(start, None).adapter)
