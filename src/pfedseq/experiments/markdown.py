"""A sheet as Markdown tables for the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pfedseq.experiments.catalogue import Arm
from pfedseq.experiments.settings import Scenario
from pfedseq.experiments.sheet import Column, Sheet
from pfedseq.files import write_atomically

Options = Mapping[tuple[str, str], str]
"""By (scenario, line): the options that tuning chose, as text."""


def write_markdown(sheet: Sheet, options: Options, path: Path) -> None:
    """All tables of a sheet."""
    write_atomically(path, "\n".join(markdown(sheet, options)))


def markdown(sheet: Sheet, options: Options) -> list[str]:
    """The lines of the results, of pFedSeq's leads and, where methods were tuned, of options."""
    seeds = ", ".join(map(str, sheet.seeds))
    spread = "mean ± standard deviation over seeds" if len(sheet.seeds) > 1 else "seed"
    losses = " (test loss)" if _has_loss(sheet) else ""
    lines = [f"{sheet.experiment.title}: {spread} {seeds}{losses}.", ""]
    shown = sheet.shown()
    lines += _table(
        sheet.arms,
        [_heading(sheet, column) for column in shown],
        [[_result(sheet, column, number) for column in shown] for number in range(len(sheet.arms))],
    )
    leads = [c for c in shown if any(cell.behind for cell in c.cells)]
    if leads:
        lines += [
            "pFedSeq's lead in points, paired by client and seed, with its 95 % interval.",
            "",
        ]
        lines += _table(
            sheet.arms,
            [column.scenario.title for column in leads],
            [[_lead(column, number) for column in leads] for number in range(len(sheet.arms))],
        )
    if any(options.values()):
        lines += ["Options that tuning on validation data chose.", ""]
        lines += _table(
            sheet.arms,
            [scenario.title for scenario in sheet.scenarios],
            [[_chosen(options, s, arm) for s in sheet.scenarios] for arm in sheet.arms],
        )
    return lines


def _table(
    arms: Sequence[Arm], headings: Sequence[str], rows: Sequence[Sequence[str]]
) -> list[str]:
    """One row for each arm with results."""
    lines = ["| | " + " | ".join(headings) + " |", "| --- |" + " ---: |" * len(headings)]
    for arm, cells in zip(arms, rows, strict=True):
        if any(cell != "–" for cell in cells):
            lines.append(f"| {arm.title} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _heading(sheet: Sheet, column: Column) -> str:
    several = sum(one.scenario == column.scenario for one in sheet.shown()) > 1
    title = column.scenario.title
    return f"{title}, {column.measure.title}" if several else title


def _has_loss(sheet: Sheet) -> bool:
    return any(column.measure.key == "loss" for column in sheet.columns)


def _result(sheet: Sheet, column: Column, number: int) -> str:
    cell, digits = column.cells[number], column.measure.format.digits
    if cell.ours is None:
        return "–"
    text = f"{cell.ours.mean:,.{digits}f}"
    if cell.num_seeds > 1 and digits:
        text += f" ± {cell.ours.std:.{digits}f}"
    if column.standing().get(number) == "best":
        text = f"**{text}**"
    if cell.num_seeds not in (0, len(sheet.seeds)):
        text += f", {cell.num_seeds} of {len(sheet.seeds)} seeds"
    if column.measure.key == "client_mean" and _has_loss(sheet):
        loss = sheet.column(column.scenario, "loss").cells[number].ours
        text += "" if loss is None else f" ({loss.mean:.3f})"
    return text


def _lead(column: Column, number: int) -> str:
    lead = column.cells[number].behind
    if lead is None:
        return "–"
    if lead.low is None or lead.high is None:
        return f"{lead.mean:+.2f}"
    return f"{lead.mean:+.2f} [{lead.low:+.2f}, {lead.high:+.2f}]"


def _chosen(options: Options, scenario: Scenario, arm: Arm) -> str:
    return options.get((scenario.name, arm.key)) or "–"
