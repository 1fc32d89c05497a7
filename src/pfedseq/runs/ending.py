"""The end of a method: model selection, early stopping and the final assessment."""

from __future__ import annotations

from collections.abc import Sequence

from pfedseq.config import RunConfig
from pfedseq.engines.intake import Intake
from pfedseq.errors import InputError
from pfedseq.federation import Server
from pfedseq.measures import Counts
from pfedseq.runs.records import RoundRecord, best_on_validation, evaluated
from pfedseq.runs.scores import Assessment, read_scores


def choose(records: Sequence[RoundRecord], section: RunConfig) -> int | None:
    """The best round on validation so far, if `run.keep` asks for it."""
    if section.keep == "last" or not evaluated(records):
        return None
    return _best(records, f'run.keep = "{section.keep}"')


def enough(records: Sequence[RoundRecord], section: RunConfig) -> bool:
    """Whether `run.patience` evaluations have passed without an improvement on validation."""
    if section.patience is None or not evaluated(records):
        return False
    best = _best(records, "run.patience")
    return sum(t > best for t, _ in evaluated(records)) >= section.patience


def _best(records: Sequence[RoundRecord], option: str) -> int:
    found = best_on_validation(records)
    if found is None:
        raise InputError(
            f"{option} needs validation data on which the headline is defined, and no client has "
            "any: set data.validation_fraction, or leave the option out"
        )
    return found[0]


def assess(
    server: Server, intake: Intake, records: Sequence[RoundRecord], section: RunConfig
) -> Assessment:
    """Ask every client for all measures of the model that it keeps.

    Also ask once for the validation score of the mean model, to find clients that personalisation
    harms.
    """
    t = records[-1].round
    replies = intake.replies("assess", t)
    if not replies:
        raise InputError("no client answered when its final model was to be measured")
    metrics = {i: dict(reply.metrics) for i, reply in replies.items()}
    if (mean := server.mean()) is not None:
        for i, values in intake.metrics("evaluate_mean", t, mean).items():
            if i in metrics:
                metrics[i] = {**values, **metrics[i]}
    read = {i: Counts.read(r.tensors, server.setup.num_classes or 0) for i, r in replies.items()}
    chosen = choose(records, section)
    return Assessment(
        t if chosen is None else chosen,
        section.keep,
        section.rounds,
        read_scores(metrics, section.headline),
        {i: counts for i, counts in read.items() if counts is not None},
        {i: said["adapter_moved"] for i, said in metrics.items() if "adapter_moved" in said},
    )
