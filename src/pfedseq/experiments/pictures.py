"""The paper's figures from our runs, each as PNG and SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pfedseq.drawing import save_picture
from pfedseq.experiments.catalogue import Arm
from pfedseq.experiments.settings import Scenario
from pfedseq.experiments.sheet import Column, Sheet
from pfedseq.measures import MEASURES, Measure
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.records import evaluated
from pfedseq.words import size

OURS, PAPER, MUTED = "#1f5fbf", "#b8860b", "#9aa4b2"


def draw_accuracies(sheet: Sheet, stem: Path) -> list[Path]:
    """A dot for every arm, ours on the left, the paper's on the right with its own scale."""
    columns = sheet.shown()
    height = 1.0 + 0.3 * len(sheet.arms)
    figure = Figure(figsize=(9, 0.4 + height * len(columns)), dpi=150, layout="constrained")
    panels = figure.subplots(len(columns), 2, squeeze=False)
    for column, (left, right) in zip(columns, panels, strict=True):
        for axes, title in ((left, "ours"), (right, "paper")):
            axes.set_title(f"{column.scenario.title}, {title}", fontsize=9, loc="left")
            axes.set_ylim(len(sheet.arms) - 0.4, -0.8)
            axes.grid(axis="x", alpha=0.3)
            axes.set_xlabel(f"{_axis(sheet.headline)}, mean over clients", fontsize=8)
            axes.tick_params(labelsize=8)
        left.set_yticks(range(len(sheet.arms)), [arm.title for arm in sheet.arms])
        right.set_yticks(range(len(sheet.arms)), [])
        for number, (arm, cell) in enumerate(zip(sheet.arms, column.cells, strict=True)):
            is_method = arm.key == "pfedseq"
            if cell.ours is not None:
                spread = cell.ours.std if cell.num_seeds > 1 else None
                _dot(left, cell.ours.mean, spread, number, OURS if is_method else MUTED)
            if cell.paper is not None:
                _dot(right, cell.paper.mean, cell.paper.std, number, PAPER if is_method else MUTED)
        if not any(cell.paper for cell in column.cells):
            right.set_axis_off()
    return _save(figure, stem)


def draw_sweep(sheet: Sheet, stem: Path) -> list[Path]:
    """Accuracy by L or W with its standard deviation over seeds; the dotted line is PeFLL."""
    columns = sheet.shown()
    figure = Figure(figsize=(5.2 * len(columns), 3.6), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(columns), squeeze=False)[0]
    for column, axes in zip(columns, panels, strict=True):
        points = [
            (arm.value, cell.ours.mean, cell.ours.std)
            for arm, cell in zip(sheet.arms, column.cells, strict=True)
            if arm.value is not None and cell.ours is not None
        ]
        if points:
            values, means, spreads = zip(*points, strict=True)
            axes.errorbar(values, means, yerr=spreads, color=OURS, marker="o", capsize=3, lw=1.8)
        for arm, cell in zip(sheet.arms, column.cells, strict=True):
            if arm.value is None and cell.ours is not None:
                axes.axhline(cell.ours.mean, color=MUTED, linestyle=":", label=arm.title)
                axes.legend(frameon=False, fontsize=8)
        axes.set_title(column.scenario.title, fontsize=10, loc="left")
        axes.set_xlabel(sheet.experiment.title.removeprefix("Accuracy by the "))
        axes.set_ylabel(_axis(sheet.headline))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    return _save(figure, stem)


def _axis(headline: Measure) -> str:
    return headline.format.label(f"test {headline.title}")


def draw_seconds(sheet: Sheet, stem: Path) -> list[Path]:
    """Time per round relative to Local, ours and the paper's."""
    relative = [column for column in sheet.shown() if column.measure.key == "relative_to_local"]
    return _bars(sheet, relative or sheet.shown(), "time per round relative to Local", stem)


def draw_traffic(sheet: Sheet, stem: Path) -> list[Path]:
    """Bytes per round of all clients, up and down."""
    columns = [column for column in sheet.shown() if column.measure.key == "bytes_per_round"]
    return _bars(sheet, columns, "bytes per round, all clients, up and down", stem, as_size=True)


def draw_learning_curves(
    curves: Mapping[Scenario, Mapping[Arm, Sequence[RunFolder]]], stem: Path
) -> list[Path]:
    """Mean over clients by round; with several seeds their mean, and an area for their range."""
    figure = Figure(figsize=(6.4, 3.9 * len(curves) + 0.2), dpi=150, layout="constrained")
    panels = figure.subplots(len(curves), 1, squeeze=False)[:, 0]
    headline = MEASURES["accuracy"]
    colours = matplotlib.colormaps["tab20"].colors  # type: ignore[attr-defined]
    for (scenario, arms), axes in zip(curves.items(), panels, strict=True):
        for number, (arm, folders) in enumerate(arms.items()):
            if not folders:
                continue
            of_seeds = [
                {t: s.measure.format.scale * s.client_mean for t, s in measured}
                for measured in (evaluated(folder.by_method()[arm.method]) for folder in folders)
            ]
            headline = evaluated(folders[0].by_method()[arm.method])[0][1].measure
            rounds = sorted(set.intersection(*map(set, of_seeds)))
            values = [[seed[t] for seed in of_seeds] for t in rounds]
            ours = arm.key == "pfedseq"
            colour = OURS if ours else colours[(2 * number + 2 * number // 20) % 20]
            means = [fmean(v) for v in values]
            axes.plot(
                rounds,
                means,
                label=f"{arm.title}  {means[-1]:.1f}",
                color=colour,
                linewidth=2.4 if ours else 1.2,
                zorder=3 if ours else 2,
                marker="o" if len(rounds) < 12 else None,
                markersize=3,
            )
            if len(folders) > 1:
                low, high = [min(v) for v in values], [max(v) for v in values]
                axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set_title(scenario.title, fontsize=10, loc="left")
        axes.set_xlabel("communication round")
        axes.set_ylabel(_axis(headline))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _save(figure, stem)


def _dot(axes: Axes, mean: float, spread: float | None, height: int, colour: str) -> None:
    axes.errorbar([mean], [height], xerr=spread, fmt="o", color=colour, markersize=5, capsize=2)
    axes.annotate(
        f"{mean:.2f}",
        (mean, height),
        (0, 4),
        textcoords="offset points",
        ha="center",
        fontsize=6.5,
        color="#555",
    )
    axes.margins(x=0.18)


def _bars(
    sheet: Sheet, columns: Sequence[Column], label: str, stem: Path, *, as_size: bool = False
) -> list[Path]:
    figure = Figure(
        figsize=(4.6 * len(columns), 1.0 + 0.32 * len(sheet.arms)), dpi=150, layout="constrained"
    )
    panels = figure.subplots(1, len(columns), squeeze=False)[0]
    for place, (column, axes) in enumerate(zip(columns, panels, strict=True)):
        for shift, colour, called, values in (
            (-0.2, OURS, "ours", [c.ours.mean if c.ours else None for c in column.cells]),
            (0.2, PAPER, "paper", [c.paper.mean if c.paper else None for c in column.cells]),
        ):
            there = [(number, v) for number, v in enumerate(values) if v is not None]
            if there:
                places, widths = zip(*there, strict=True)
                axes.barh([p + shift for p in places], widths, 0.38, color=colour, label=called)
        axes.set_yticks(range(len(sheet.arms)), [a.title for a in sheet.arms] if not place else [])
        axes.set_ylim(len(sheet.arms) - 0.5, -0.5)
        axes.set_title(column.scenario.title, fontsize=9, loc="left")
        axes.set_xlabel(label, fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
        if as_size:
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size(value)))
            axes.xaxis.set_major_locator(MaxNLocator(4))
        if any(cell.paper for cell in column.cells):
            axes.legend(frameon=False, fontsize=8)
    return _save(figure, stem)


def _save(figure: Figure, stem: Path) -> list[Path]:
    files = [stem.with_name(stem.name + suffix) for suffix in (".png", ".svg")]
    for path in files:
        save_picture(figure, path)
    return files
