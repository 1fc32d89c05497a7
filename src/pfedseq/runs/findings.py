"""Warnings about the results of a finished run; each is one function, listed at the end.

A finding is a code for programs and a sentence for people. Findings are computed from the run's
records only, so a federation across sites has them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean, median
from typing import Any

from pfedseq.methods import method_title
from pfedseq.runs.judging import FEWEST_TO_JUDGE, can_be_judged
from pfedseq.runs.records import Finding, RoundRecord, evaluated
from pfedseq.runs.scores import EvaluationSplit, Scores
from pfedseq.words import some

LEAST_MOVEMENT = 0.01
"""Relative distance from the start below which adapters have hardly moved."""
SAME_LOSS = 0.001
"""Difference of losses below which two methods end equal."""
RISE = 1.2
"""Ratio of the final to the lowest loss above which a loss has risen."""
COARSE = 50
"""Test examples (or tokens) below which one is more than two points of accuracy."""


@dataclass(frozen=True)
class Seen:
    """The records of a run."""

    records: Mapping[str, Sequence[RoundRecord]]
    """By method."""
    scores: Mapping[str, Scores]
    """Scores of the kept models, by method."""
    names: Sequence[str]
    """The clients' names, by number."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The methods' own options."""
    moved: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """By method and client: the adapter's relative distance from its start."""
    trained_classes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Training examples of each class by client name, if known."""
    tested_classes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    class_names: Sequence[str] = ()

    def name(self, client: int) -> str:
        """The name of a client."""
        return self.names[client] if client < len(self.names) else str(client)


def hardly_moved(seen: Seen) -> Iterator[Finding]:
    """Adapters that end where they started."""
    for method, by_client in seen.moved.items():
        if by_client and (typical := median(by_client.values())) < LEAST_MOVEMENT:
            yield Finding(
                "adapters_hardly_moved",
                f"the adapters of {method_title(method)} hardly moved: by {100 * typical:.2g} % of "
                "their initial length; raise training.lr or run.rounds, or search with "
                "`pfedseq tune`",
                (method,),
            )


def equal_methods(seen: Seen) -> Iterator[Finding]:
    """Pairs of methods that end equal for every client."""
    for one, other in combinations(seen.scores, 2):
        ours, theirs = (seen.scores[method] for method in (one, other))
        if ours.clients != theirs.clients or ours.by_client() != theirs.by_client():
            continue
        losses = [scores.by_client(name="loss") for scores in (ours, theirs)]
        if losses[0].keys() == losses[1].keys() and all(
            abs(losses[0][i] - losses[1][i]) < SAME_LOSS for i in losses[0]
        ):
            yield Finding(
                "equal_methods",
                f"{method_title(one)} and {method_title(other)} end equal for every client (losses "
                f"within {SAME_LOSS:g}): the difference between them had no effect",
                (one, other),
            )


def loss_rose(seen: Seen) -> Iterator[Finding]:
    """Methods whose mean loss ends well above its lowest value."""
    for method, records in seen.records.items():
        scored = evaluated(records)
        split: EvaluationSplit = "validation"
        if not scored or not scored[-1][1].by_client(split, "loss"):
            split = "test"
        means = [
            (fmean(by_client.values()), t)
            for t, scores in scored
            if (by_client := scores.by_client(split, "loss"))
        ]
        if not means:
            continue
        (lowest, best), (last, end) = min(means), means[-1]
        if last > RISE * lowest:
            yield Finding(
                "loss_rose",
                f"the mean {split} loss of {method_title(method)} rose from {lowest:.3g} in round "
                f"{best} to {last:.3g} in round {end}: lower training.lr, or keep the best round "
                'with run.keep = "best_on_validation"',
                (method,),
            )


def learner_never_used(seen: Seen) -> Iterator[Finding]:
    """A warm-up that lasted until the end."""
    for method, options in seen.options.items():
        warmup, records = options.get("warmup_rounds"), seen.records.get(method)
        if not isinstance(warmup, int) or "learner_lr" not in options or not records:
            continue
        if warmup >= records[-1].round:
            yield Finding(
                "learner_never_used",
                f"the learner of {method_title(method)} was never used: its warm-up of {warmup} "
                f"rounds lasted to the end (round {records[-1].round}); lower "
                f"methods.{method}.warmup_rounds",
                (method,),
            )


def small_sets(seen: Seen) -> Iterator[Finding]:
    """Clients with too few test or validation examples to judge them by."""
    scores = next(iter(seen.scores.values()), None)
    if scores is None:
        return
    consequences: dict[EvaluationSplit, str] = {
        "test": "they are excluded from the worst client and the bottom decile",
        "validation": "they are not reported as worse off",
    }
    for split, consequence in consequences.items():
        sizes = dict(zip(scores.clients, scores.examples(split), strict=True))
        small = {seen.name(i): n for i, n in sizes.items() if n and not can_be_judged(n)}
        if small:
            listed = some([f"{name} ({n})" for name, n in small.items()])
            counted = "examples" if scores.has_classes else "tokens"
            yield Finding(
                f"small_{split}_set",
                f"too few {split} {counted} to judge by, fewer than {FEWEST_TO_JUDGE}: {listed}; "
                f"{consequence}",
                clients=tuple(small),
            )


def coarse_scores(seen: Seen) -> Iterator[Finding]:
    """Test sets so small that one example matters."""
    scores = next(iter(seen.scores.values()), None)
    if scores is None:
        return
    sizes = [n for n in scores.test_examples if n]
    if sizes and min(sizes) < COARSE:
        counts = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
        one, measure = (
            ("example", "accuracy") if scores.has_classes else ("token", "token accuracy")
        )
        yield Finding(
            "coarse_scores",
            f"test sets have {counts} {one}s: one {one} is up to {100 / min(sizes):.2g} points "
            f"of a client's {measure}",
        )


def missing_classes(seen: Seen) -> Iterator[Finding]:
    """Classes that a client trains on and is not tested on."""
    lacking = {}
    for client, trained in seen.trained_classes.items():
        tested = seen.tested_classes.get(client, ())
        missing = [
            seen.class_names[number]
            for number, (to_train, to_test) in enumerate(zip(trained, tested, strict=True))
            if to_train and not to_test
        ]
        if missing:
            lacking[client] = missing
    if lacking:
        listed = "; ".join(
            f"{client}: {some(classes, 3)}" for client, classes in list(lacking.items())[:3]
        )
        more = f"; and {len(lacking) - 3} more clients" if len(lacking) > 3 else ""
        yield Finding(
            "classes_missing_from_test",
            f"test sets lack classes that their clients train on ({listed}{more}): scores say "
            "nothing about these",
            clients=tuple(lacking),
        )


FINDINGS: tuple[Callable[[Seen], Iterator[Finding]], ...] = (
    hardly_moved,
    equal_methods,
    loss_rose,
    learner_never_used,
    small_sets,
    coarse_scores,
    missing_classes,
)
"""All checks, the most serious first."""


def look(seen: Seen) -> tuple[Finding, ...]:
    """Run all checks."""
    return tuple(finding for find in FINDINGS for finding in find(seen))
