"""An experiment's results as rows × columns, ours next to the paper's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from scipy.stats import kendalltau

from pfedseq.experiments import paper
from pfedseq.experiments.catalogue import Arm, Experiment
from pfedseq.experiments.results import Quantity, Runs, lead, quantities, seconds_per_round
from pfedseq.experiments.settings import Scenario
from pfedseq.experiments.statistics import Interval, MeanStd
from pfedseq.measures import MEASURES, PLAIN, Format, Measure
from pfedseq.runs.records import MethodSummary

BYTES_PER_PARAMETER = 4

Finished = Mapping[tuple[str, str], Runs]
"""By (scenario, arm): the finished runs' summaries by seed."""
SECONDS, RATIO, WHOLE, BYTES = (
    *(Format(1, "s", 2), Format(1, "", 2), Format(1, "parameters", 0), Format(1, "B", 0)),
)


@dataclass(frozen=True)
class Cell:
    """The result of one arm over seeds, and the paper's number; as printed, in %."""

    ours: MeanStd | None
    num_seeds: int
    paper: paper.Published | None
    behind: Interval | None = None
    """pFedSeq's client mean minus this one's, paired over clients and the seeds that both have."""


@dataclass(frozen=True)
class Column:
    """One quantity in one scenario, a cell for every arm."""

    scenario: Scenario
    measure: Quantity
    cells: tuple[Cell, ...]

    def standing(self) -> dict[int, Literal["best", "second"]]:
        """Which arms come first and second, by the numbers as printed; equals share a place."""
        if self.measure.better is None:
            return {}
        values = [
            None if cell.ours is None else round(cell.ours.mean, self.measure.format.digits)
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
    headline: Measure
    """The headline of the runs."""

    @property
    def scenarios(self) -> list[Scenario]:
        """Scenarios of the sheet, each once."""
        return list(dict.fromkeys(column.scenario for column in self.columns))

    def shown(self) -> list[Column]:
        """Columns that are printed."""
        return [column for column in self.columns if column.measure.shown]

    def column(self, scenario: Scenario, key: str) -> Column:
        """One measure in one scenario."""
        return next(c for c in self.columns if (c.scenario, c.measure.key) == (scenario, key))


def fill_sheet(
    experiment: Experiment,
    arms: Sequence[Arm],
    scenarios: Sequence[Scenario],
    seeds: Sequence[int],
    runs: Finished,
    notes: Mapping[str, Sequence[str]],
    rounds: Mapping[str, int],
) -> Sheet:
    """The sheet of what is finished; an arm without a finished run stays empty.

    `rounds` says by scenario how many rounds a whole run has.
    """
    columns = []
    first = next((run for found in runs.values() for run in found.values()), None)
    headline = MEASURES["accuracy"] if first is None else first.measure
    for scenario in scenarios:
        for measure in _measures(experiment, scenario, runs, rounds[scenario.name], headline):
            cells = []
            for arm in arms:
                found = runs.get((scenario.name, arm.key), {})
                cells.append(
                    Cell(
                        _scaled(measure.over_seeds(found), measure.format.scale),
                        len(measure.values(found)),
                        _paper_value(experiment, measure, arm, scenario),
                        _behind(
                            runs.get((scenario.name, "pfedseq"), {}), found, measure.format.scale
                        )
                        if measure.key == "client_mean" and arm.key != "pfedseq"
                        else None,
                    )
                )
            columns.append(Column(scenario, measure, tuple(cells)))
    return Sheet(experiment, tuple(arms), tuple(columns), tuple(seeds), notes, headline)


def _scaled(value: MeanStd | None, scale: float) -> MeanStd | None:
    return None if value is None else MeanStd(scale * value.mean, scale * value.std)


def _behind(pfedseq: Runs, other: Runs, scale: float) -> Interval | None:
    """As printed; None where the two have no seed in common."""
    if (found := lead(pfedseq, other)) is None:
        return None
    mean, low, high = vars(found.interval).values()
    return Interval(
        scale * mean,
        None if low is None else scale * low,
        None if high is None else scale * high,
    )


def _measures(
    experiment: Experiment, scenario: Scenario, runs: Finished, rounds: int, headline: Measure
) -> Sequence[Quantity]:
    if experiment.kind == "seconds":
        return _seconds(runs.get((scenario.name, "local"), {}).values())
    if experiment.kind == "traffic":
        return _traffic(rounds)
    if headline.name == "loss":
        return quantities(headline)
    return (*quantities(headline), Quantity("loss", "loss", PLAIN, "low", _loss))


def _loss(summary: MethodSummary) -> float | None:
    over = summary.scores.over_clients("loss")
    return None if over is None else over.client_mean


def _seconds(local: Iterable[MethodSummary]) -> Sequence[Quantity]:
    shown = {"shown": True, "has_paper": True}
    found = [Quantity("seconds_per_round", "seconds", SECONDS, None, seconds_per_round, **shown)]
    if of_local := [seconds_per_round(summary) for summary in local]:
        base = fmean(of_local)
        found.append(
            Quantity(
                "relative_to_local",
                "÷ Local",
                RATIO,
                "low",
                lambda summary: seconds_per_round(summary) / base,
                **shown,
            )
        )
    return found


def _traffic(rounds: int) -> Sequence[Quantity]:
    def parameters(field: str) -> Callable[[MethodSummary], float]:
        return lambda summary: (
            getattr(summary.cost, field)
            / summary.rounds
            / len(summary.scores.clients)
            / BYTES_PER_PARAMETER
        )

    def per_round(summary: MethodSummary) -> float:
        return (summary.cost.bytes_up + summary.cost.bytes_down) / summary.rounds

    def quantity(
        key: str, title: str, written: Format, of: Callable[[MethodSummary], float]
    ) -> Quantity:
        return Quantity(key, title, written, None, of, shown=True)

    return (
        quantity("parameters_up", "up", WHOLE, parameters("bytes_up")),
        quantity("parameters_down", "down", WHOLE, parameters("bytes_down")),
        quantity("bytes_per_round", "bytes a round", BYTES, per_round),
        quantity(
            "bytes_in_all",
            f"bytes in {rounds} rounds",
            BYTES,
            lambda summary: rounds * per_round(summary),
        ),
    )


def _paper_value(
    experiment: Experiment, measure: Quantity, arm: Arm, scenario: Scenario
) -> paper.Published | None:
    if not measure.has_paper or arm.paper_row is None:
        return None
    found = paper.published(experiment.name, arm.paper_row, scenario.stands_for)
    if found is not None and measure.key == "relative_to_local":
        local = paper.published(experiment.name, "local", scenario.stands_for)
        assert local is not None
        return paper.Published(found.mean / local.mean)
    return found
