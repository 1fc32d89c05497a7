"""Tables of an experiment: our numbers next to the paper's, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from pfedseq.experiments import paper
from pfedseq.experiments.estimate import Pace, seconds_left
from pfedseq.experiments.plan import Plan
from pfedseq.experiments.reproduce import Reproduction
from pfedseq.experiments.sheet import Column, Sheet
from pfedseq.experiments.tune import Trial, at_edges, indistinct, winners
from pfedseq.measures import Measure
from pfedseq.methods import method_title
from pfedseq.report.console import console, plain_table
from pfedseq.report.progress import minutes
from pfedseq.words import count, size


def print_sheet(sheet: Sheet) -> None:
    """Print a table per scenario, then how well the ranking agrees with the paper's."""
    for scenario in sheet.scenarios:
        columns = [column for column in sheet.shown() if column.scenario == scenario]
        table = plain_table()
        table.add_column("", max_width=44)
        for column in columns:
            table.add_column(column.measure.title, justify="right", no_wrap=True)
            if _has_paper(column):
                table.add_column("paper", justify="right", no_wrap=True, style="yellow")
            if _has_behind(column):
                table.add_column("pFedSeq ahead by", justify="right", no_wrap=True)
        group = ""
        for number, arm in enumerate(sheet.arms):
            if arm.group != group:
                group = arm.group
                table.add_row(f"[dim italic]{escape(group)}[/dim italic]")
            cells = [
                text
                for column in columns
                for text in (
                    _ours(column, number),
                    *([_theirs(column, number)] if _has_paper(column) else []),
                    *([_behind(column, number)] if _has_behind(column) else []),
                )
            ]
            table.add_row(escape(arm.title), *cells)
        console.print(
            f"[italic]{escape(sheet.experiment.title)}: {escape(scenario.title)}[/italic]"
        )
        console.print(table)
        _print_remarks(sheet, columns)
        _print_notes(scenario.title, sheet.notes.get(scenario.title, ()))
    if (said := paper.statement(sheet.experiment.name)) is not None:
        console.print(f"The paper: {escape(said)}.", soft_wrap=True)


def print_made(files: Sequence[Path], problems: Mapping[str, str]) -> None:
    """Print the result paths and the missing runs."""
    console.print("Results:")
    for path in files:
        console.print(f"  {escape(str(path))}", soft_wrap=True)
    for label, problem in problems.items():
        console.print(f"[red]missing[/red] {escape(label)}: {escape(problem)}", soft_wrap=True)


def _print_remarks(sheet: Sheet, columns: Sequence[Column]) -> None:
    remarks = []
    if len(sheet.seeds) > 1:
        remarks.append("± is the standard deviation over seeds, not the standard error")
    if any(map(_has_behind, columns)):
        remarks.append("pFedSeq ahead by: points, paired by client and seed, 95 % interval")
    for column in columns:
        tau = column.agreement()
        if tau is not None:
            remarks.append(
                f"order of {column.measure.title} against the paper's: Kendall's τ = {tau:+.2f}"
            )
    if remarks:
        console.print(f"[dim italic]{'; '.join(remarks)}[/dim italic]")


def _print_notes(title: str, notes: Sequence[str]) -> None:
    if notes:
        console.print(f"Not as in the paper ({escape(title)}):")
        for note in notes:
            console.print(f"  {escape(note)}", soft_wrap=True)
    console.print()


def _has_paper(column: Column) -> bool:
    return any(cell.paper for cell in column.cells)


def _has_behind(column: Column) -> bool:
    return any(cell.behind for cell in column.cells)


def _behind(column: Column, number: int) -> str:
    interval = column.cells[number].behind
    if interval is None:
        return "–"
    if interval.low is None or interval.high is None:
        return f"{interval.mean:+.2f}"
    return escape(f"{interval.mean:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]")


def _ours(column: Column, number: int) -> str:
    cell, measure = column.cells[number], column.measure
    if cell.ours is None:
        return "–"
    text = _number(column, cell.ours.mean)
    if cell.num_seeds > 1 and measure.format.digits:
        text += f"±{cell.ours.std:.{measure.format.digits}f}"
    place = column.standing().get(number)
    if place is None:
        return text
    style = "bold" if place == "best" else "underline"
    return f"[{style}]{text}[/{style}]"


def _theirs(column: Column, number: int) -> str:
    published = column.cells[number].paper
    if published is None:
        return "–"
    text = _number(column, published.mean)
    return text if published.std is None else f"{text}±{published.std:.2f}"


def _number(column: Column, value: float) -> str:
    if column.measure.format.unit == "B":
        return size(value)
    digits = column.measure.format.digits
    return f"{value:.{digits}f}" if digits else f"{value:,.0f}"


def print_experiments(wanted: Sequence[Reproduction], paces: dict[str, Pace]) -> None:
    """List all tables and figures with their runs, progress and remaining time."""
    table = Table(title="pfedseq reproduce NAME", title_justify="left", box=SIMPLE, padding=0)
    table.add_column("name", no_wrap=True)
    for heading in ("what it is", "data sets"):
        table.add_column(heading)
    for heading in ("runs", "done", "left"):
        table.add_column(heading, justify="right", no_wrap=True)
    for reproduction in wanted:
        experiment, entries = reproduction.experiment, reproduction.entries()
        done = sum(entry.folder(reproduction.runs).summary.exists() for entry in entries)
        seconds = seconds_left(reproduction, paces)
        table.add_row(
            experiment.name,
            f"{experiment.title} [dim]({escape(paper.source(experiment.name))})[/dim]",
            ", ".join(scenario.name for scenario in reproduction.scenarios),
            str(len(entries)),
            str(done),
            "?" if seconds is None else minutes(seconds),
        )
    console.print(table)
    console.print(
        "[dim italic]left: from Local, measured just now, and the paper's table of seconds for the "
        "other methods; runs that several need are counted in each[/dim italic]"
    )
    for name, pace in paces.items():
        if pace.missing is not None:
            console.print(f"{escape(name)} is unavailable: {escape(pace.missing)}", soft_wrap=True)


def print_plan(plan: Plan) -> None:
    """Print the size of a run, then the cost of each method."""
    console.print(
        f"{count(plan.rounds, 'round')}, {count(plan.num_clients, 'client')}; "
        f"{count(plan.training_examples, f'training {plan.unit}')} an epoch, "
        f"{count(plan.evaluated_examples, f'{plan.unit}')} at each of "
        f"{count(plan.evaluations, 'evaluation')}",
        soft_wrap=True,
    )
    table = plain_table()
    table.add_column("method")
    for heading in (
        *("time", "clients", "server", "testing", "saving"),
        *("up", "down", "server\nstate", "disk"),
    ):
        table.add_column(heading, justify="right")
    for row in plan.methods:
        table.add_row(
            method_title(row.method),
            minutes(row.seconds),
            minutes(row.training_seconds),
            minutes(row.server_seconds),
            minutes(row.evaluate_seconds),
            minutes(row.saving_seconds),
            size(row.bytes_up),
            size(row.bytes_down),
            size(row.server_memory),
            size(row.disk),
        )
    console.print(table)
    for row in plan.methods:
        for note in row.notes:
            console.print(f"{method_title(row.method)}: {note}.", soft_wrap=True)
    disk = sum(row.disk for row in plan.methods)
    console.print(
        f"In all {minutes(plan.seconds)} on this machine, as busy as it is now, "
        f"{minutes(plan.startup_seconds)} of it to start; {size(disk)} on disk.",
        soft_wrap=True,
    )


def print_trials(found: Sequence[Trial], headline: Measure) -> None:
    """Print all trials, each method's best first, and optima at the edge of the grid."""
    best = winners(found)
    table = plain_table()
    table.add_column("method")
    table.add_column("values")
    table.add_column("validation", justify="right")
    table.add_column("loss", justify="right")
    for trial in found:
        table.add_row(
            method_title(trial.method),
            escape(trial.shown(", ") or "as configured"),
            "failed" if trial.score is None else headline.format(trial.score),
            "" if trial.score is None else f"{trial.loss:.4g}",
            style="bold" if trial in best else None,
        )
    what = headline.format.label(f"Validation {headline.title}", "in {}")
    console.print(f"[italic]{what}, mean over clients[/italic]")
    console.print(table)
    for trial in best:
        if close := indistinct(trial, found, headline):
            console.print(
                f"Note: {count(len(close), 'other trial')} of {method_title(trial.method)} "
                "cannot be told apart from its best: the standard error of a score is "
                f"{100 * trial.error:.2g} points with these validation examples; use more seeds, "
                "such as --seeds 0,1,2",
                soft_wrap=True,
            )
        for option in at_edges(trial, found):
            console.print(
                f"Warning: {method_title(trial.method)}'s best {option} = {trial.values[option]} "
                "is the smallest or largest that was tried: a better one may lie beyond it",
                soft_wrap=True,
            )
    for name in dict.fromkeys(trial.method for trial in found):
        if name not in [trial.method for trial in best]:
            console.print(f"Warning: no trial of {method_title(name)} succeeded")
