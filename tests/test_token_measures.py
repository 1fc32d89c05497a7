"""Perplexity and token accuracy: of one client's tokens, and of all clients'."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from pfedseq.measures import MEASURES, TokenPredictions, find_measure, score, score_tokens
from pfedseq.runs.scores import read_scores

EVERY = tuple(MEASURES)


def drawn(number, seed, vocabulary=11):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(number, vocabulary, generator=rng)
    return logits, torch.randint(vocabulary, (number,), generator=rng)


def scored(logits, tokens, sizes=None):
    sizes = sizes or [len(tokens)]
    parts = zip(logits.split(sizes), tokens.split(sizes), strict=True)
    return score_tokens(TokenPredictions.of(parts), EVERY)


def test_perplexity_is_exp_of_the_mean_loss_over_tokens_not_over_parts():
    logits, tokens = drawn(12, 0)
    found = scored(logits, tokens, [3, 8, 1])
    loss = float(cross_entropy(logits.double(), tokens))
    assert found["loss"] == pytest.approx(loss, rel=1e-6)
    assert found["perplexity"] == pytest.approx(np.exp(loss), rel=1e-6)
    assert found["token_accuracy"] == float((logits.argmax(1) == tokens).double().mean())
    assert found.num_examples == 12
    assert set(found.values) == {"perplexity", "token_accuracy", "loss"}, "nothing of classes"
    assert found.counts is None, "how often a token was taken for which would tell the text"


def test_the_likeliest_token_is_the_prediction():
    """Three of four tokens have the highest logit; the fourth has the lowest."""
    tokens = torch.tensor([0, 3, 2, 1])
    logits = torch.zeros(4, 5)
    logits[range(4), tokens] = torch.tensor([2.0, 1.0, 3.0, -1.0])
    assert scored(logits, tokens)["token_accuracy"] == 0.75


def test_classes_have_no_perplexity():
    assert {"perplexity", "token_accuracy"}.isdisjoint(score(*drawn(9, 0), EVERY).values)


def test_a_split_without_tokens_has_a_loss_of_zero():
    empty = score_tokens(TokenPredictions.of([]), EVERY)
    assert (empty.values, empty.num_examples) == ({"loss": 0.0}, 0)


def test_a_loss_beyond_all_floats_is_a_finite_perplexity():
    logits = torch.tensor([[0.0, 5000.0]])
    assert 1e300 < scored(logits, torch.tensor([0]))["perplexity"] < np.inf


def test_over_clients_weighted_by_tokens_it_is_the_perplexity_of_all_their_tokens():
    """9 tokens and 3: the mean over clients is plain, the weighted one is of the 12 together."""
    parts = [drawn(9, 1), drawn(3, 2)]
    replies = {}
    for i, part in enumerate(parts):
        found = scored(*part)
        replies[i] = {
            f"{split}_{name}": value
            for split in ("test", "validation")
            for name, value in {**found.values, "examples": found.num_examples}.items()
        }
    scores = read_scores(replies, "perplexity")
    together = scored(*map(torch.cat, zip(*parts, strict=True)))
    own = [replies[i]["test_perplexity"] for i in (0, 1)]
    assert scores.over_test.client_mean == pytest.approx(np.mean(own))
    assert scores.over_test.sample_weighted == pytest.approx(together["perplexity"])
    assert scores.over_test.worst_client == max(own), "higher is worse"


def test_lower_perplexities_are_better():
    measure = find_measure("perplexity")
    assert measure.is_better(2.0, 3.0)
    assert measure.rank(2.0) > measure.rank(3.0)
    assert measure.gain(2.0, 3.0) == 1.0
