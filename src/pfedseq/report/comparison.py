"""Several methods over several seeds on the same partitions, from the folders of their runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfedseq.experiments.statistics import Interval, MeanStd, paired_interval
from pfedseq.files import write_atomically
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.records import MethodSummary


@dataclass(frozen=True)
class ComparisonRow:
    """One method's line of the table."""

    method: str
    client_mean: MeanStd
    """At the last round, as are the next three; mean and standard deviation over seeds."""
    sample_weighted: MeanStd
    worst_client: MeanStd
    bottom_decile: MeanStd
    best_on_validation: MeanStd | None
    """Client mean at the round that was best on validation data; None without such data."""
    best_on_test_optimistic: MeanStd
    """At the round that was best on the test data themselves: nobody could have chosen it."""
    difference: Interval
    """Accuracy minus the first method's on the same client and seed, with the mean's 95 %
    confidence interval over clients × seeds.
    """
    wins: int
    losses: int
    """Clients (of all seeds) that do better, and worse, than with the first method."""
    seconds_per_round: float
    """Clients' and server's seconds together, evaluation left out."""
    cost_ratio: float | None
    """`seconds_per_round` relative to Local's, where Local takes part."""
    bytes_up_per_round: float
    bytes_down_per_round: float


def compare_runs(runs: Mapping[str, Sequence[RunFolder]]) -> list[ComparisonRow]:
    """The table of finished runs, each method's in the same order of seeds."""
    return tabulate(
        {
            name: [folder.read_summary().methods[name] for folder in folders]
            for name, folders in runs.items()
        }
    )


def tabulate(summaries: Mapping[str, Sequence[MethodSummary]]) -> list[ComparisonRow]:
    """The table from each method's summaries, seed by seed in the same order."""
    reference = next(iter(summaries.values()))
    local = summaries.get("local")
    local_cost = _seconds_per_round(local) if local else None
    rows = []
    for name, runs in summaries.items():
        mine, theirs = ([run.test_accuracy for run in of] for of in (runs, reference))
        pairs = [
            pair for both in zip(mine, theirs, strict=True) for pair in zip(*both, strict=True)
        ]
        validated = [run.best_on_validation for run in runs if run.best_on_validation is not None]
        cost = _seconds_per_round(runs)
        rows.append(
            ComparisonRow(
                method=name,
                client_mean=MeanStd.of([run.client_mean for run in runs]),
                sample_weighted=MeanStd.of([run.sample_weighted for run in runs]),
                worst_client=MeanStd.of([run.worst_client for run in runs]),
                bottom_decile=MeanStd.of([run.bottom_decile for run in runs]),
                best_on_validation=MeanStd.of([best.client_mean for best in validated])
                if validated
                else None,
                best_on_test_optimistic=MeanStd.of(
                    [run.best_on_test_optimistic.client_mean for run in runs]
                ),
                difference=paired_interval(mine, theirs),
                wins=sum(own > other for own, other in pairs),
                losses=sum(own < other for own, other in pairs),
                seconds_per_round=cost,
                cost_ratio=cost / local_cost if local_cost else None,
                bytes_up_per_round=_per_round(runs, "bytes_up"),
                bytes_down_per_round=_per_round(runs, "bytes_down"),
            )
        )
    return rows


def _seconds_per_round(runs: Sequence[MethodSummary]) -> float:
    return _per_round(runs, "client_seconds") + _per_round(runs, "server_seconds")


def _per_round(runs: Sequence[MethodSummary], key: str) -> float:
    total: float = sum(getattr(run.cost, key) for run in runs) / sum(run.rounds for run in runs)
    return total


def write_comparison(rows: Sequence[ComparisonRow], seeds: Sequence[int], path: Path) -> None:
    """The table as JSON."""
    values: dict[str, Any] = {
        "seeds": list(seeds),
        "reference": rows[0].method,
        "methods": {
            row.method: {
                key: vars(value) if isinstance(value, MeanStd | Interval) else value
                for key, value in vars(row).items()
                if key != "method"
            }
            for row in rows
        },
    }
    write_atomically(path, json.dumps(values, indent=2) + "\n")
