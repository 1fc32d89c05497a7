"""A sheet as files for programs and papers: CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from pfedseq.experiments import paper
from pfedseq.experiments.sheet import Cell, Column, Sheet
from pfedseq.files import write_atomically

_CSV_HEADINGS = (
    *("experiment", "data_set", "in_place_of", "row", "method", "measure", "unit", "num_seeds"),
    *("mean", "std_over_seeds", "paper_mean", "paper_std", "paper_source"),
    *("pfedseq_minus_this", "interval95_low", "interval95_high"),
)
_LATEX = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "÷": r"$\div$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "α": r"$\alpha$",
    "ξ": r"$\xi$",
    "θ": r"$\theta$",
    "Δ": r"$\Delta$",
}


def write_csv(sheet: Sheet, path: Path) -> None:
    """Every measure of every arm in every scenario, a line each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_HEADINGS)
    name = sheet.experiment.name
    for column in sheet.columns:
        for arm, cell in zip(sheet.arms, column.cells, strict=True):
            ours, theirs = cell.ours, cell.paper
            writer.writerow(
                [
                    name,
                    column.scenario.name,
                    column.scenario.stands_for or "",
                    arm.key,
                    arm.method,
                    column.measure.key,
                    column.measure.format.unit,
                    cell.num_seeds,
                    "" if ours is None else repr(ours.mean),
                    "" if ours is None or cell.num_seeds < 2 else repr(ours.std),
                    "" if theirs is None else theirs.mean,
                    "" if theirs is None or theirs.std is None else theirs.std,
                    "" if theirs is None else paper.source(name),
                    *_interval(cell),
                ]
            )
    write_atomically(path, text.getvalue())


def write_latex(sheet: Sheet, path: Path) -> None:
    """A booktabs table: mean ± standard deviation over seeds, best bold, second underlined."""
    columns = sheet.shown()
    papers = [any(cell.paper for cell in column.cells) for column in columns]
    headings = ["", ""]
    rules = []
    place = 2
    for scenario in sheet.scenarios:
        width = sum(
            1 + has for c, has in zip(columns, papers, strict=True) if c.scenario == scenario
        )
        headings[0] += f" & \\multicolumn{{{width}}}{{c}}{{{latex_text(scenario.title)}}}"
        rules.append(f"\\cmidrule(lr){{{place}-{place + width - 1}}}")
        place += width
    for column, has_paper in zip(columns, papers, strict=True):
        title = latex_text(column.measure.title)
        headings[1] += f" & {title}" + (r" & paper" if has_paper else "")
    body: list[str] = []
    for number, arm in enumerate(sheet.arms):
        if arm.group and (number == 0 or sheet.arms[number - 1].group != arm.group):
            group = latex_text(arm.group)
            body += [r"\midrule", f"\\multicolumn{{{place - 1}}}{{l}}{{\\textit{{{group}}}}} \\\\"]
        line = latex_text(arm.title)
        for column, has_paper in zip(columns, papers, strict=True):
            line += f" & {_ours(column, number)}"
            if has_paper:
                line += f" & {_theirs(column, column.cells[number])}"
        body.append(line + r" \\")
    seeds = ", ".join(map(str, sheet.seeds))
    spread = r", mean $\pm$ standard deviation over seeds" if len(sheet.seeds) > 1 else ", seed"
    source = latex_text(paper.source(sheet.experiment.name))
    caption = f"{latex_text(sheet.experiment.title)}{spread} {seeds}; the paper: {source}."
    write_atomically(
        path,
        "\n".join(
            [
                "% needs \\usepackage{booktabs}",
                *(f"% {key}: {line}" for key, lines in sheet.notes.items() for line in lines),
                r"\begin{table}",
                r"\centering",
                f"\\begin{{tabular}}{{l{'r' * (place - 2)}}}",
                r"\toprule",
                headings[0] + r" \\",
                " ".join(rules),
                headings[1] + r" \\",
                r"\midrule",
                *body,
                r"\bottomrule",
                r"\end{tabular}",
                f"\\caption{{{caption}}}",
                r"\end{table}",
                "",
            ]
        ),
    )


def latex_text(text: str) -> str:
    """Escape LaTeX's special characters."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _interval(cell: Cell) -> list[float | str]:
    if cell.behind is None:
        return ["", "", ""]
    values = (cell.behind.mean, cell.behind.low, cell.behind.high)
    return ["" if value is None else value for value in values]


def _ours(column: Column, number: int) -> str:
    cell = column.cells[number]
    if cell.ours is None:
        return "--"
    text = _number(cell.ours.mean, column.measure.format.digits)
    place = column.standing().get(number)
    if place is not None:
        text = f"\\{'textbf' if place == 'best' else 'underline'}{{{text}}}"
    if cell.num_seeds > 1:
        text += f"{{\\tiny$\\pm${cell.ours.std:.{column.measure.format.digits}f}}}"
    return text


def _theirs(column: Column, cell: Cell) -> str:
    if cell.paper is None:
        return "--"
    text = _number(cell.paper.mean, column.measure.format.digits)
    return text if cell.paper.std is None else f"{text}{{\\tiny$\\pm${cell.paper.std:.2f}}}"


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if digits else f"{value:,.0f}".replace(",", "{,}")
