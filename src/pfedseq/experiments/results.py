"""Results of methods over seeds: the one table behind `compare`, `reproduce` and `report`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pfedseq.experiments.statistics import Interval, MeanStd, mean_interval
from pfedseq.files import write_atomically
from pfedseq.measures import Format, Measure
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.records import MethodSummary

Runs = Mapping[int, MethodSummary]
"""The summaries of a method's finished runs, by seed."""


@dataclass(frozen=True)
class Quantity:
    """A number derived from a run's summary."""

    key: str
    title: str
    format: Format
    better: Literal["high", "low"] | None
    of: Callable[[MethodSummary], float | None]
    """Returns None if the run has no such number."""
    shown: bool = False
    """Whether `reproduce` prints it; all are in its CSV."""
    has_paper: bool = False

    def over_seeds(self, runs: Runs) -> MeanStd | None:
        """Its mean and spread over the runs that have it."""
        values = self.values(runs)
        return MeanStd.of(values) if values else None

    def values(self, runs: Runs) -> list[float]:
        """One for each run that has it."""
        return [value for run in runs.values() if (value := self.of(run)) is not None]


def quantities(measure: Measure) -> tuple[Quantity, ...]:
    """The quantities reported for a headline: statistics of the kept models, and best rounds.

    The best round on test data is optimistic, since it was selected on test data.
    """
    better: Literal["high", "low"] = "high" if measure.higher_is_better else "low"

    def over(field: str) -> Callable[[MethodSummary], float]:
        return lambda summary: float(getattr(summary.scores.over_test, field))

    def best_on_validation(summary: MethodSummary) -> float | None:
        best = summary.best_on_validation
        return None if best is None else best.client_mean

    def best_on_test(summary: MethodSummary) -> float:
        return summary.best_on_test_optimistic.client_mean

    def quantity(
        key: str,
        title: str,
        of: Callable[[MethodSummary], float | None],
        *,
        main: bool = False,
    ) -> Quantity:
        papers = main and measure.name == "accuracy"
        return Quantity(key, title, measure.format, better, of, shown=main, has_paper=papers)

    return (
        quantity("client_mean", "client mean", over("client_mean"), main=True),
        quantity("sample_weighted", "by samples", over("sample_weighted")),
        quantity("worst_client", "worst client", over("worst_client")),
        quantity("bottom_decile", "bottom decile", over("bottom_decile")),
        quantity("best_on_validation", "best on validation", best_on_validation),
        quantity("best_on_test_optimistic", "best on test (optimistic)", best_on_test),
    )


@dataclass(frozen=True)
class Lead:
    """The difference between two methods on the same clients and seeds."""

    interval: Interval
    """The 95 % confidence interval of the mean over clients × seeds; positive is better."""
    wins: int
    losses: int
    """Clients (over all seeds) that do better and worse."""
    seeds: int


def lead(mine: Runs, theirs: Runs) -> Lead | None:
    """Compare mine with theirs; None without a common seed or client."""
    both = sorted(mine.keys() & theirs.keys())
    tables = [[of[seed].by_client for seed in both] for of in (mine, theirs)]
    rows = [set(row) for table in tables for row in table]
    clients = sorted(set.intersection(*rows)) if rows else []
    if not clients:
        return None
    measure = mine[both[0]].measure
    gains = [
        [measure.gain(own[i], other[i]) for i in clients]
        for own, other in zip(*tables, strict=True)
    ]
    every = [gain for row in gains for gain in row]
    return Lead(
        mean_interval(gains),
        wins=sum(gain > 0 for gain in every),
        losses=sum(gain < 0 for gain in every),
        seeds=len(both),
    )


def seconds_per_round(summary: MethodSummary) -> float:
    """Mean seconds per round at clients and server, without evaluation."""
    return (summary.cost.client_seconds + summary.cost.server_seconds) / summary.rounds


@dataclass(frozen=True)
class ComparisonRow:
    """One method's row of `compare`."""

    method: str
    values: Mapping[str, MeanStd | None]
    """By quantity: mean and standard deviation over seeds."""
    lead: Lead
    """The difference from the first method."""
    seconds_per_round: float
    cost_ratio: float | None
    """`seconds_per_round` relative to Local's, where Local takes part."""
    bytes_up_per_round: float
    bytes_down_per_round: float
    pooled: Mapping[str, MeanStd]
    """Measures over the pooled test examples of all clients, where available."""

    def to_json(self) -> dict[str, Any]:
        """The row as one JSON object."""
        values = {key: None if v is None else vars(v) for key, v in self.values.items()}
        return {
            **values,
            "difference": vars(self.lead.interval),
            "wins": self.lead.wins,
            "losses": self.lead.losses,
            "seconds_per_round": self.seconds_per_round,
            "cost_ratio": self.cost_ratio,
            "bytes_up_per_round": self.bytes_up_per_round,
            "bytes_down_per_round": self.bytes_down_per_round,
            "pooled": {name: vars(value) for name, value in self.pooled.items()},
        }


@dataclass(frozen=True)
class Comparison:
    """Several methods over the same seeds."""

    measure: Measure
    """The headline."""
    rows: tuple[ComparisonRow, ...]
    seeds: tuple[int, ...]
    keep: str
    """Which round's models are compared: `last` or `best_on_validation`."""
    examples: int
    """Test examples of all clients, at the first seed."""
    undefined: int
    """The largest number of clients, over all runs, for which the headline is undefined."""

    def to_json(self) -> dict[str, Any]:
        """The content of comparison.json."""
        return {
            "headline": self.measure.name,
            "keep": self.keep,
            "seeds": list(self.seeds),
            "test_examples": self.examples,
            "undefined": self.undefined,
            "reference": self.rows[0].method,
            "methods": {row.method: row.to_json() for row in self.rows},
        }

    def write(self, path: Path) -> None:
        """Write the comparison as JSON."""
        write_atomically(path, json.dumps(self.to_json(), indent=2) + "\n")


def compare_runs(folders: Mapping[str, Sequence[RunFolder]], seeds: Sequence[int]) -> Comparison:
    """The comparison of finished runs, each method's in the order of `seeds`."""
    return tabulate(
        {
            name: {
                seed: folder.read_summary().methods[name]
                for seed, folder in zip(seeds, some, strict=True)
            }
            for name, some in folders.items()
        }
    )


def tabulate(by_method: Mapping[str, Runs]) -> Comparison:
    """The comparison of each method's summaries over the same seeds."""
    reference = next(iter(by_method.values()))
    first = next(iter(reference.values()))
    local = by_method.get("local")
    local_cost = _mean(local, seconds_per_round) if local else None
    rows = []
    for name, runs in by_method.items():
        ahead, cost = lead(runs, reference), _mean(runs, seconds_per_round)
        rows.append(
            ComparisonRow(
                name,
                {one.key: one.over_seeds(runs) for one in quantities(first.measure)},
                ahead or Lead(Interval(0.0, None, None), 0, 0, 0),
                seconds_per_round=cost,
                cost_ratio=cost / local_cost if local_cost else None,
                bytes_up_per_round=_mean(runs, lambda run: run.cost.bytes_up / run.rounds),
                bytes_down_per_round=_mean(runs, lambda run: run.cost.bytes_down / run.rounds),
                pooled={
                    measure: MeanStd.of([run.pooled[measure] for run in runs.values()])
                    for measure in first.pooled
                    if all(measure in run.pooled for run in runs.values())
                },
            )
        )
    every = [run for runs in by_method.values() for run in runs.values()]
    return Comparison(
        first.measure,
        tuple(rows),
        tuple(reference),
        first.keep,
        sum(first.scores.test_examples),
        max(run.scores.over_test.undefined for run in every),
    )


def _mean(runs: Runs, of: Callable[[MethodSummary], float]) -> float:
    return fmean(of(run) for run in runs.values())
