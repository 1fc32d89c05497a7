"""Predictions and evaluations as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from pfedseq.measures import MEASURES, Measure
from pfedseq.report.console import console, plain_table
from pfedseq.report.tables import widths
from pfedseq.serving.prediction import Prediction, WrittenAnswer

if TYPE_CHECKING:
    from pfedseq.serving.evaluation import Evaluation

NARROWEST_NAME = 12
"""Minimum width of the column of client names."""
MOST_CLASSES = 30
"""Rows of a table of classes; --json has all of them."""


def print_predictions(predictions: Sequence[Prediction | WrittenAnswer]) -> None:
    """One line per example: the most likely classes with their probabilities, or the answer."""
    for one in predictions:
        if isinstance(one, WrittenAnswer):
            written = f"{escape(one.prompt)}: [bold]{escape(one.text)}[/bold]"
            console.print(written, soft_wrap=True, highlight=False)
            continue
        named = ", ".join(
            f"[bold]{escape(name)}[/bold] ({100 * share:.0f} %)"
            if place == 0
            else f"{escape(name)} ({100 * share:.0f} %)"
            for place, (name, share) in enumerate(zip(one.classes, one.probabilities, strict=True))
        )
        console.print(f"{escape(one.example)}: {named}", soft_wrap=True, highlight=False)


def print_evaluations(found: Mapping[str, Evaluation]) -> None:
    """One row per client; for a single client also one row per class."""
    units = " and ".join(sorted({f"{one.unit}s" for one in found.values()}))
    console.print(f"[italic]Measures on n {units}[/italic]")
    shown: list[Measure] = []
    for measure in (measure for name, measure in MEASURES.items() if _defined(found, name)):
        if shown and widths(_evaluations(found, [*shown, measure])).minimum > console.width:
            console.print(_evaluations(found, shown))
            shown = []
        shown.append(measure)
    console.print(_evaluations(found, shown))
    if len(found) == 1 and next(iter(found.values())).class_names:
        _print_classes(next(iter(found.values())))


def _evaluations(found: Mapping[str, Evaluation], measures: Sequence[Measure]) -> Table:
    """Clients × measures."""
    table = plain_table()
    table.add_column("client", overflow="fold", min_width=NARROWEST_NAME)
    table.add_column("n", justify="right", no_wrap=True)
    for measure in measures:
        table.add_column(measure.format.label(measure.title).replace(" ", "\n"), justify="right")
    for name, one in found.items():
        cells = (
            measure.format(one.measures[measure.name]) if measure.name in one.measures else "–"
            for measure in measures
        )
        table.add_row(escape(name), f"{one.num_examples:,}", *cells)
    return table


def _defined(found: Mapping[str, Evaluation], name: str) -> bool:
    return any(name in one.measures for one in found.values())


def _print_classes(one: Evaluation) -> None:
    table = plain_table()
    table.add_column("class", overflow="fold")
    table.add_column(f"{one.unit}s", justify="right", no_wrap=True)
    table.add_column("recall", justify="right", no_wrap=True)
    table.add_column("most often predicted as", overflow="fold")
    counts = one.confusion.sum(1)
    seen = [number for number in range(len(counts)) if counts[number]]
    for number in seen[:MOST_CLASSES]:
        mistakes = one.confusion[number].copy()
        mistakes[number] = 0
        other = int(mistakes.argmax())
        taken = f"{one.class_names[other]} ({mistakes[other]:,})" if mistakes[other] else ""
        share = f"{100 * one.confusion[number, number] / counts[number]:.2f}"
        table.add_row(escape(one.class_names[number]), f"{counts[number]:,}", share, escape(taken))
    console.print("[italic]Recall in % of each class[/italic]", table, sep="\n")
    if len(seen) > MOST_CLASSES:
        console.print(f"… and {len(seen) - MOST_CLASSES} more classes; --json lists all")
