"""Figures of a run or of a comparison, drawn from the result folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.typing import ColorType

from pfedseq.drawing import save_picture
from pfedseq.measures import Measure
from pfedseq.methods import method_title
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.records import evaluated
from pfedseq.runs.scores import Scores

Measured = list[tuple[int, Scores]]
"""The rounds after which the clients were evaluated, and how they did."""


def draw_curves(folder: RunFolder) -> None:
    """The headline by round: the mean over clients solid, the worst client dotted."""
    by_method = {name: evaluated(records) for name, records in folder.by_method().items()}
    figure, axes = _axes(next(iter(by_method.values())))
    for name, measured in by_method.items():
        colour = _draw_mean(axes, name, [measured])
        rounds = [t for t, _ in measured]
        worst = [scores.measure.format.scale * scores.worst_client for _, scores in measured]
        axes.plot(rounds, worst, color=colour, linestyle=":", linewidth=1)
    axes.set_title("Mean over clients (solid), worst client (dotted)", fontsize=10)
    _save(figure, folder.curves)


def draw_comparison(runs: Mapping[str, Sequence[RunFolder]], path: Path) -> None:
    """The headline by round of several methods; with several seeds their mean and range."""
    by_method = {
        name: [evaluated(folder.by_method()[name]) for folder in folders]
        for name, folders in runs.items()
    }
    figure, axes = _axes(next(iter(by_method.values()))[0])
    num_seeds = 0
    for name, measured in by_method.items():
        num_seeds = len(measured)
        colour = _draw_mean(axes, name, measured)
        rounds, columns = _by_round(measured)
        if num_seeds > 1:
            low, high = [min(c) for c in columns], [max(c) for c in columns]
            axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
    over = f"; line and area: mean and range of {num_seeds} seeds" if num_seeds > 1 else ""
    axes.set_title(f"Mean over clients{over}", fontsize=10)
    _save(figure, path)


def _axes(measured: Measured) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel("communication round")
    headline = measured[0][1].measure
    axes.set_ylabel(headline.format.label(f"test {headline.title}"))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    return figure, axes


def _draw_mean(axes: Axes, name: str, seeds: Sequence[Measured]) -> ColorType:
    """One method's curve with a marker at every round that was measured; returns its colour."""
    rounds, columns = _by_round(seeds)
    mean = [fmean(column) for column in columns]
    (line,) = axes.plot(
        rounds,
        mean,
        label=f"{method_title(name)}  {_short(seeds[0][0][1].measure, mean[-1])}",
        linewidth=2.2 if name == "pfedseq" else 1.5,
        zorder=3 if name == "pfedseq" else 2,
        marker="o",
        markersize=3.5 if len(rounds) > 1 else 6,
    )
    return line.get_color()


def _short(headline: Measure, scaled: float) -> str:
    """'61.2 %', or '0.812'."""
    digits = max(1, headline.format.digits - 1)
    return f"{scaled:.{digits}f} {headline.format.unit}".strip()


def _by_round(seeds: Sequence[Measured]) -> tuple[list[int], list[list[float]]]:
    """The rounds that were measured under every seed, and each seed's headline there."""
    scores = [
        {t: s.measure.format.scale * s.client_mean for t, s in measured} for measured in seeds
    ]
    rounds = sorted(set.intersection(*(set(of_seed) for of_seed in scores)))
    return rounds, [[of_seed[t] for of_seed in scores] for t in rounds]


def _save(figure: Figure, path: Path) -> None:
    figure.legend(title="mean, last round", frameon=False, loc="outside right upper")
    save_picture(figure, path)
