"""pFedMe in closed form on L(θ) = ½ ‖θ − c‖².

The inner problem ½ ‖θ − c‖² + λ/2 ‖θ − w‖² + μ/2 ‖θ‖² has the solution
θ* = (c + λ w) / (1 + λ + μ), and a step of rate η_p contracts to it by q = 1 − η_p (1 + λ + μ).
"""

import pytest
import torch

from pfedseq.config import make_config
from pfedseq.errors import InputError
from pfedseq.federation import Reply
from pfedseq.methods.pfedme import PFedMeClient, PFedMeConfig, PFedMeServer
from pfedseq.params import Params
from tests.toys import QuadraticTask, make_setup, random_centers

CENTER, START, ELSEWHERE = random_centers(3)
RATES = {"outer_lr": 0.1, "proximal_weight": 3.0, "lr": 0.2, "inner_decay": 0.5}


def train(num_batches: int, **options) -> tuple[Params, Params]:
    """θ_i and w_i after one round from START."""
    client = PFedMeClient(PFedMeConfig(**options), QuadraticTask(CENTER, 1, num_batches), {})
    reply = client.train({"adapter": START.adapter, "head": START.head})
    elsewhere = {"adapter": ELSEWHERE.adapter, "head": ELSEWHERE.head}
    return client.personal(elsewhere), Params(**reply.tensors)


def assert_close(a: Params, b: Params) -> None:
    torch.testing.assert_close(a.flat(), b.flat())


def solution(local: Params) -> Params:
    return (1 / 4.5) * (CENTER + 3.0 * local)


def test_many_inner_steps_solve_the_inner_problem():
    inner, local = train(1, **RATES, inner_steps=100)
    assert_close(inner, solution(START))
    assert_close(local, START - 0.1 * 3.0 * (START - solution(START)))


def test_k_inner_steps_contract_and_go_on_from_batch_to_batch():
    """K = 2, q = 1 − 0.2 · 4.5 = 0.1, two batches; the second starts at θ_1, not at w_1:

        θ_1 = θ*(w_0) + q² (w_0 − θ*(w_0)),   w_1 = w_0 − η λ (w_0 − θ_1),
        θ_2 = θ*(w_1) + q² (θ_1 − θ*(w_1)),   w_2 = w_1 − η λ (w_1 − θ_2).

    The client keeps θ_2 whatever it receives afterwards, and sends w_2.
    """
    theta_1 = solution(START) + 0.1**2 * (START - solution(START))
    w_1 = START - 0.3 * (START - theta_1)
    theta_2 = solution(w_1) + 0.1**2 * (theta_1 - solution(w_1))
    w_2 = w_1 - 0.3 * (w_1 - theta_2)
    inner, local = train(2, **RATES, inner_steps=2)
    assert_close(inner, theta_2)
    assert_close(local, w_2)


def test_before_training_the_received_model_is_tested():
    client = PFedMeClient(PFedMeConfig(), QuadraticTask(CENTER), {})
    assert_close(client.personal({"adapter": START.adapter, "head": START.head}), START)


def test_the_server_moves_by_its_rate():
    """β = 0.25 with weights 1/4 and 3/4: w' = 0.75 w + 0.25 (w_1 / 4 + 3 w_2 / 4)."""
    first, second = random_centers(2, seed=4)
    setup = make_setup([CENTER], (1, 3), initial=START)
    server = PFedMeServer(PFedMeConfig(server_rate=0.25), setup)
    replies = {
        0: Reply({"adapter": first.adapter, "head": first.head}),
        1: Reply({"adapter": second.adapter, "head": second.head}),
    }
    server.update(1, replies)
    mean = 0.25 * first + 0.75 * second
    assert_close(Params(**server.payload(0)), 0.75 * START + 0.25 * mean)


def test_draws_that_would_overshoot_are_refused():
    with pytest.raises(InputError, match=r"outer_lr · proximal_weight is 1\.5 "):
        make_config({"run": {"methods": ["pfedme"]}}, ["methods.pfedme.outer_lr=0.1"])
