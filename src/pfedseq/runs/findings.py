"""Remarks on the results of a finished run; each is one function, listed at the end.

A finding is a code for programs and a sentence for people. Findings are computed from the run's
records only, so a federation across sites has them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import sqrt
from statistics import fmean, median
from typing import Any

from pfedseq.methods import method_title
from pfedseq.runs.judging import FEWEST_TO_JUDGE, can_be_judged
from pfedseq.runs.records import Finding, RoundRecord, evaluated
from pfedseq.runs.scores import EvaluationSplit, Scores
from pfedseq.words import some

HARDLY_MOVED = "adapters_hardly_moved"
"""The code of the finding that `tune` acts on."""
LEAST_MOVEMENT = 0.01
"""Relative distance from the start below which adapters have hardly moved.

On photographs and digits they moved by 0.06 to 0.9 at the default rate (3 to 80 rounds), by 0.04 at
a quarter of it and by 0.0002 at a thousandth of it.
"""
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
    backbone: str = ""
    """The config's `model.backbone`."""
    keeps_last: bool = True
    """Whether clients keep the models of the last round, rather than of the best one."""

    def name(self, client: int) -> str:
        """The name of a client."""
        return self.names[client] if client < len(self.names) else str(client)


def hardly_moved(seen: Seen) -> Iterator[Finding]:
    """Adapters that end where they started."""
    if still := _still(seen):
        listed = _listed({method: f"by {100 * far:.2g} %" for method, far in still.items()})
        yield Finding(
            HARDLY_MOVED,
            f"adapters hardly moved from their initial values: {listed}; raise training.lr or "
            "run.rounds, or search with `pfedseq tune`",
            tuple(still),
        )


def _still(seen: Seen) -> dict[str, float]:
    """The typical client's movement, for the methods whose adapters hardly moved."""
    typical = {method: median(far.values()) for method, far in seen.moved.items() if far}
    return {method: far for method, far in typical.items() if far < LEAST_MOVEMENT}


def no_better_than_guessing(seen: Seen) -> Iterator[Finding]:
    """Methods that beat a constant answer by less than two standard errors of its accuracy.

    Those whose adapters hardly moved have a cause of their own.
    """
    guessed, still = _guessing(seen), _still(seen)
    low = {}
    for method, scores in seen.scores.items():
        accuracies = scores.by_client(name="accuracy")
        if method in still or not accuracies or not accuracies.keys() <= guessed.keys():
            continue
        shares, counts = zip(*(guessed[i] for i in accuracies), strict=True)
        variances = [p * (1 - p) / n for p, n in zip(shares, counts, strict=True)]
        guess, error = fmean(shares), sqrt(sum(variances)) / len(variances)
        if (mean := fmean(accuracies.values())) < guess + 2 * error:
            low[method] = (mean, guess)
    if low:
        listed = _listed({method: f"{100 * mean:.1f} %" for method, (mean, _) in low.items()})
        guess = next(iter(low.values()))[1]
        advice = "`pfedseq tune`, more rounds or examples, or another model.backbone may help"
        if seen.backbone == "demo":
            advice = (
                "the demo backbone knows simple shapes of 32 pixels only; set model.backbone to a "
                "pretrained one"
            )
        yield Finding(
            "no_better_than_guessing",
            "not clearly better than always naming a client's most frequent class "
            f"({100 * guess:.1f} % on test data): {listed}; {advice}",
            tuple(low),
        )


def _guessing(seen: Seen) -> dict[int, tuple[float, int]]:
    """By client: the share of its most frequent training class in its test data, and their number.

    Clients with unknown class counts are left out.
    """
    found = {}
    for number, client in enumerate(seen.names):
        trained: Sequence[int] = seen.trained_classes.get(client, ())
        tested: Sequence[int] = seen.tested_classes.get(client, ())
        total = sum(tested)
        if len(trained) > 1 and total:
            most = max(range(len(trained)), key=lambda c: trained[c])
            found[number] = (tested[most] / total, total)
    return found


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
    rose: dict[EvaluationSplit, dict[str, str]] = {"validation": {}, "test": {}}
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
            rose[split][method] = f"from {lowest:.3g} in round {best} to {last:.3g} in round {end}"
    for measured, methods in rose.items():
        if methods:
            advice = "lower training.lr or run.rounds"
            if seen.keeps_last:
                advice += ', or keep the best round with run.keep = "best_on_validation"'
            yield Finding(
                "loss_rose",
                f"the mean {measured} loss rose: {_listed(methods)}; {advice}",
                tuple(methods),
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
        "test": "they count in the means, but not in the worst client and the bottom decile",
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
        more = f"; and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        yield Finding(
            "classes_missing_from_test",
            f"test sets lack classes that their clients train on ({listed}{more}): scores say "
            "nothing about these",
            clients=tuple(lacking),
        )


def groups_found(seen: Seen) -> Iterator[Finding]:
    """Groups of clients that share a mean adapter."""
    for method, records in seen.records.items():
        labels = records[-1].server.get("group", ()) if records else ()
        # Labels are by place. Places are clients' numbers unless clients have left; one that comes
        # back has its number again, and another place.
        if not labels or len(labels) != len(seen.names) or any(r.left for r in records):
            continue
        members = {label: [n for n, one in enumerate(labels) if one == label] for label in labels}
        groups = [some([seen.name(n) for n in found]) for found in members.values() if found[1:]]
        yield Finding(
            "groups_found",
            f"{method_title(method)} found clients whose data ask for similar adapters, and gave "
            f"each group a mean of its own: {'; '.join(groups)}",
            (method,),
        )


def _listed(by_method: Mapping[str, str]) -> str:
    """'pFedSeq by 0.2 %, Local by 0.3 %'."""
    return ", ".join(f"{method_title(method)} {what}" for method, what in by_method.items())


FINDINGS: tuple[Callable[[Seen], Iterator[Finding]], ...] = (
    hardly_moved,
    no_better_than_guessing,
    equal_methods,
    loss_rose,
    learner_never_used,
    small_sets,
    coarse_scores,
    missing_classes,
    groups_found,
)
"""All checks, the most serious first."""


def look(seen: Seen) -> tuple[Finding, ...]:
    """Run all checks."""
    return tuple(finding for find in FINDINGS for finding in find(seen))
