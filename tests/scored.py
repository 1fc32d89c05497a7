"""Scores and summaries made by hand, for tests of what is made of them."""

from dataclasses import replace

from pfedseq.runs.records import BestRound, Cost, MethodSummary
from pfedseq.runs.scores import Scores


def scores_of(accuracies, validation=None, *, examples=None, clients=None, loss=1.0, **more):
    """Clients with these test accuracies; `more` are columns of other measures on test."""
    number = len(accuracies)
    validation = (None,) * number if validation is None else tuple(validation)
    return Scores(
        "accuracy",
        tuple(range(number)) if clients is None else tuple(clients),
        (10,) * number if examples is None else tuple(examples),
        tuple(0 if value is None else 10 for value in validation),
        {"accuracy": tuple(accuracies), "loss": (loss,) * number, **more},
        {"accuracy": validation, "loss": tuple(None if v is None else 1.0 for v in validation)},
    )


def summary_of(accuracies, *, rounds=1, cost=None, best=1.0, **more):
    """One method's result with these test accuracies."""
    return MethodSummary(
        rounds=rounds,
        planned_rounds=rounds,
        keep="last",
        kept_round=rounds,
        scores=scores_of(accuracies, **more),
        best_on_validation=None,
        best_on_test_optimistic=BestRound(1, best),
        cost=cost or Cost(100, 60, 9.0, 1.0, 0.0),
    )


def with_headline(scores, name):
    """The same, going by another measure."""
    return replace(scores, headline=name)
