"""Ditto in closed form on L(v) = ½ ‖v − c‖².

The gradient v − c + λ (v − w) vanishes at v* = (c + λ w) / (1 + λ), and a step of rate η contracts
to it by q = 1 − η (1 + λ).
"""

import torch

from pfedseq.methods.ditto import DittoClient, DittoConfig
from pfedseq.params import Params
from tests.toys import QuadraticTask, RecordingTask, ScatteredTask, random_centers

CENTER, GLOBAL, OWN = random_centers(3)
DOWN = {"adapter": GLOBAL.adapter, "head": GLOBAL.head}


def fresh_client(num_batches: int, own: Params | None = None, **options) -> DittoClient:
    state = {} if own is None else {"adapter": own.adapter, "head": own.head}
    return DittoClient(DittoConfig(**options), QuadraticTask(CENTER, 1, num_batches), state)


def assert_close(a: Params, b: Params) -> None:
    torch.testing.assert_close(a.flat(), b.flat())


def test_the_personal_model_contracts_to_its_fixed_point():
    """λ = 3, η = 0.1, q = 0.6; two rounds of two batches under the same w are four steps."""
    client = fresh_client(2, OWN, lr=0.1, proximal_weight=3.0)
    client.train(DOWN)
    client.train(DOWN)
    fixed_point = 0.25 * (CENTER + 3.0 * GLOBAL)
    assert_close(client.personal(DOWN), fixed_point + 0.6**4 * (OWN - fixed_point))


def test_the_global_model_is_trained_from_the_received_one_without_a_pull():
    """Sent up: w_i − c = (1 − η)² (w − c), whatever v_i is; nothing of v_i is in the reply."""
    reply = fresh_client(2, OWN, lr=0.1, proximal_weight=3.0).train(DOWN)
    assert set(reply.tensors) == {"adapter", "head"}
    assert_close(Params(**reply.tensors), CENTER + 0.9**2 * (GLOBAL - CENTER))


def test_the_personal_model_starts_as_the_received_one():
    client = fresh_client(1, lr=0.1, proximal_weight=3.0)
    assert_close(client.personal(DOWN), GLOBAL)
    client.train(DOWN)  # the pull is zero at v = w
    assert_close(client.personal(DOWN), GLOBAL - 0.1 * (GLOBAL - CENTER))


def test_each_batch_serves_both_models():
    """One pass of three batches: the same three for v_i and for w_i, all examples in each."""
    task = RecordingTask(ScatteredTask(CENTER, 6))
    DittoClient(DittoConfig(), task, {}).train(DOWN)
    batches = [batch for _, batch in task.asked]
    assert len(batches) == 6
    assert all(a is b for a, b in zip(batches[::2], batches[1::2], strict=True))
    assert sorted(torch.cat(batches[::2]).tolist()) == list(range(6))
