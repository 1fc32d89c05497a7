"""An experiment's results as lines × columns, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from scipy.stats import kendalltau

from pfedseq.experiments import paper
from pfedseq.experiments.catalogue import Arm, Experiment
from pfedseq.experiments.settings import Scenario
from pfedseq.experiments.statistics import Interval, MeanStd, paired_interval
from pfedseq.runs.records import MethodSummary

BYTES_PER_PARAMETER = 4

Runs = Mapping[tuple[str, str], Mapping[int, MethodSummary]]
"""By (scenario, arm): the finished runs' summaries by seed."""


@dataclass(frozen=True)
class Measure:
    """A number that a run yields."""

    key: str
    title: str
    unit: str
    digits: int
    better: Literal["high", "low"] | None
    shown: bool
    """Whether it is printed; all are in the CSV."""
    of: Callable[[MethodSummary, int], float | None]
    """From a run's summary and its number of clients; None where the run has no such number."""
    has_paper: bool = False


@dataclass(frozen=True)
class Cell:
    """What the seeds of one arm gave, and what the paper has there."""

    ours: MeanStd | None
    num_seeds: int
    paper: paper.Published | None
    behind: Interval | None = None
    """pFedSeq's client mean minus this one's, paired over clients and the seeds that both have."""


@dataclass(frozen=True)
class Column:
    """One measure in one scenario, a cell for every arm."""

    scenario: Scenario
    measure: Measure
    cells: tuple[Cell, ...]

    def standing(self) -> dict[int, Literal["best", "second"]]:
        """Which arms come first and second, by the numbers as printed; equals share a place."""
        if self.measure.better is None:
            return {}
        values = [
            None if cell.ours is None else round(cell.ours.mean, self.measure.digits)
            for cell in self.cells
        ]
        there = sorted({v for v in values if v is not None}, reverse=self.measure.better == "high")
        places: dict[int, Literal["best", "second"]] = {}
        for number, value in enumerate(values):
            if len(there) > 1 and value in there[:2]:
                places[number] = "best" if value == there[0] else "second"
        return places

    def agreement(self) -> float | None:
        """Kendall's τ_b of our order of the arms and the paper's; None below three arms."""
        pairs = [
            (cell.ours.mean, cell.paper.mean)
            for cell in self.cells
            if cell.ours is not None and cell.paper is not None
        ]
        if len(pairs) < 3:
            return None
        return float(kendalltau(*zip(*pairs, strict=True)).statistic)


@dataclass(frozen=True)
class Sheet:
    """An experiment's results."""

    experiment: Experiment
    arms: tuple[Arm, ...]
    columns: tuple[Column, ...]
    seeds: tuple[int, ...]
    notes: Mapping[str, Sequence[str]]
    """By scenario: what differs from the paper."""

    @property
    def scenarios(self) -> list[Scenario]:
        """Each once."""
        return list(dict.fromkeys(column.scenario for column in self.columns))

    def shown(self) -> list[Column]:
        """The columns for people."""
        return [column for column in self.columns if column.measure.shown]

    def column(self, scenario: Scenario, key: str) -> Column:
        """One measure in one scenario."""
        return next(c for c in self.columns if (c.scenario, c.measure.key) == (scenario, key))


def fill_sheet(
    experiment: Experiment,
    arms: Sequence[Arm],
    scenarios: Sequence[Scenario],
    seeds: Sequence[int],
    runs: Runs,
    notes: Mapping[str, Sequence[str]],
    rounds: Mapping[str, int],
) -> Sheet:
    """The sheet of what is finished; an arm without a finished run stays empty.

    `rounds` says by scenario how many rounds a whole run has.
    """
    columns = []
    for scenario in scenarios:
        for measure in _measures(experiment, scenario, runs, rounds[scenario.name]):
            cells = []
            for arm in arms:
                found = runs.get((scenario.name, arm.key), {})
                given = [measure.of(s, len(s.test_accuracy)) for s in found.values()]
                values = [value for value in given if value is not None]
                cells.append(
                    Cell(
                        MeanStd.of(values) if values else None,
                        len(values),
                        _paper_value(experiment, measure, arm, scenario),
                        _behind(runs.get((scenario.name, "pfedseq"), {}), found)
                        if measure.key == "client_mean" and arm.key != "pfedseq"
                        else None,
                    )
                )
            columns.append(Column(scenario, measure, tuple(cells)))
    return Sheet(experiment, tuple(arms), tuple(columns), tuple(seeds), notes)


def _behind(
    pfedseq: Mapping[int, MethodSummary], other: Mapping[int, MethodSummary]
) -> Interval | None:
    """In percentage points; None where the two have no seed in common."""
    if not (both := sorted(pfedseq.keys() & other.keys())):
        return None
    ours, theirs = (
        [[100 * accuracy for accuracy in runs[seed].test_accuracy] for seed in both]
        for runs in (pfedseq, other)
    )
    return paired_interval(ours, theirs)


def _measures(
    experiment: Experiment, scenario: Scenario, runs: Runs, rounds: int
) -> Sequence[Measure]:
    if experiment.kind == "seconds":
        return _seconds(runs.get((scenario.name, "local"), {}).values())
    if experiment.kind == "traffic":
        return _traffic(rounds)
    return _ACCURACIES


def _percent(field: str) -> Callable[[MethodSummary, int], float]:
    return lambda summary, _: 100 * float(getattr(summary, field))


def _on_validation(summary: MethodSummary, _: int) -> float | None:
    best = summary.best_on_validation
    return None if best is None else 100 * best.client_mean


_ACCURACIES = (
    Measure(
        "client_mean", "client mean", "%", 2, "high", True, _percent("client_mean"), has_paper=True
    ),
    Measure("sample_weighted", "by samples", "%", 2, "high", False, _percent("sample_weighted")),
    Measure("worst_client", "worst client", "%", 2, "high", False, _percent("worst_client")),
    Measure("bottom_decile", "bottom decile", "%", 2, "high", False, _percent("bottom_decile")),
    Measure("best_on_validation", "best on validation", "%", 2, "high", False, _on_validation),
    Measure(
        "best_on_test_optimistic",
        "best on test (optimistic)",
        "%",
        2,
        "high",
        False,
        lambda summary, _: 100 * summary.best_on_test_optimistic.client_mean,
    ),
)


def seconds_per_round(summary: MethodSummary) -> float:
    """At the clients and the server together, evaluation left out; the mean over all rounds."""
    return (summary.cost.client_seconds + summary.cost.server_seconds) / summary.rounds


def _seconds(local: Iterable[MethodSummary]) -> Sequence[Measure]:
    measures = [
        Measure(
            "seconds_per_round",
            "seconds",
            "s",
            2,
            None,
            True,
            lambda summary, _: seconds_per_round(summary),
            has_paper=True,
        )
    ]
    of_local = [seconds_per_round(summary) for summary in local]
    if of_local:
        base = fmean(of_local)
        measures.append(
            Measure(
                "relative_to_local",
                "÷ Local",
                "",
                2,
                "low",
                True,
                lambda summary, _: seconds_per_round(summary) / base,
                has_paper=True,
            )
        )
    return measures


def _traffic(rounds: int) -> Sequence[Measure]:
    def parameters(field: str) -> Callable[[MethodSummary, int], float]:
        return lambda summary, clients: (
            getattr(summary.cost, field) / summary.rounds / clients / BYTES_PER_PARAMETER
        )

    def per_round(summary: MethodSummary, _: int) -> float:
        return (summary.cost.bytes_up + summary.cost.bytes_down) / summary.rounds

    return (
        Measure("parameters_up", "up", "parameters", 0, None, True, parameters("bytes_up")),
        Measure("parameters_down", "down", "parameters", 0, None, True, parameters("bytes_down")),
        Measure("bytes_per_round", "bytes a round", "B", 0, None, True, per_round),
        Measure(
            "bytes_in_all",
            f"bytes in {rounds} rounds",
            "B",
            0,
            None,
            True,
            lambda summary, clients: rounds * per_round(summary, clients),
        ),
    )


def _paper_value(
    experiment: Experiment, measure: Measure, arm: Arm, scenario: Scenario
) -> paper.Published | None:
    if not measure.has_paper or arm.paper_row is None:
        return None
    found = paper.published(experiment.name, arm.paper_row, scenario.stands_for)
    if found is not None and measure.key == "relative_to_local":
        local = paper.published(experiment.name, "local", scenario.stands_for)
        assert local is not None
        return paper.Published(found.mean / local.mean)
    return found
