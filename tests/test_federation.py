"""The common half of every client and of every server."""

import pytest
import torch

from pfedseq.errors import InputError
from pfedseq.federation import Client, Reply, Setup
from pfedseq.params import Params
from tests.toys import QuadraticTask, random_centers

CENTER, OTHER = random_centers(2)


class Fixed(Client):
    """Whatever comes down is the personal model."""

    def train(self, down):
        return Reply()

    def personal(self, down):
        return Params.of(down)


def test_evaluation_scores_the_personal_model_on_test_and_validation():
    task = QuadraticTask(CENTER, num_examples=7)
    metrics = Fixed(None, task, {}).evaluate(OTHER.tensors()).metrics
    for split, size in (("test", 207), ("validation", 107)):
        score = task.score(OTHER, split)
        assert metrics[f"{split}_accuracy"] == score["accuracy"]
        assert metrics[f"{split}_loss"] == score["loss"]
        assert metrics[f"{split}_examples"] == score.num_examples == size
    assert metrics["test_loss"] != metrics["validation_loss"]


def setup():
    return Setup(CENTER, (2, 3, 5), num_rounds=1, seed=0)


def test_stack_puts_each_reply_in_its_place():
    deltas, present = setup().stack({2: Reply({"delta": OTHER.adapter})}, "delta")
    assert torch.equal(deltas[2], OTHER.adapter)
    assert not deltas[:2].any()
    assert present.tolist() == [False, False, True]
    assert setup().weights(present).tolist() == [0, 0, 5]
    heads, _ = setup().stack({0: Reply({"head": OTHER.head})}, "head")
    assert torch.equal(heads[0], OTHER.head)


def test_stack_takes_other_tensors_in_a_given_shape():
    stacked, _ = setup().stack({1: Reply({"v": torch.ones(4)})}, "v", torch.zeros(4))
    assert stacked.sum(1).tolist() == [0, 4, 0]
    with pytest.raises(KeyError):
        setup().stack({1: Reply({"v": torch.ones(4)})}, "v")


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({}, "client 1's reply has no tensor 'delta'"),
        ({"delta": torch.zeros(3)}, r"client 1's tensor 'delta' has shape \(3,\)"),
        ({"delta": torch.full_like(OTHER.adapter, torch.inf)}, "client 1.* NaN or infinity"),
    ],
)
def test_stack_refuses_a_bad_reply_by_client(tensors, says):
    replies = {0: Reply({"delta": OTHER.adapter}), 1: Reply(tensors)}
    with pytest.raises(InputError, match=says):
        setup().stack(replies, "delta")


def test_a_round_without_answers_is_refused():
    with pytest.raises(InputError, match="no client answered"):
        setup().stack({}, "delta")
