"""Tables of methods, data sets and presets."""

from __future__ import annotations

from pydantic.fields import FieldInfo
from rich.markup import escape
from rich.table import Table

from pfedseq.data.registry import DATA_SETS
from pfedseq.experiments.paper import data_set_title, published
from pfedseq.learners.variants import VARIANTS
from pfedseq.methods import METHODS, NEWER, PAPER
from pfedseq.presets import preset_names, preset_summary
from pfedseq.report.console import console
from pfedseq.training.config import LocalTraining

PAPER_COLUMNS = ("cifar100", "domainnet")
"""The data sets of the paper's Tables 2 and 3."""
IN_A_PASS = (
    "All methods' gradients and losses come from one stacked pass. What falls back to one client "
    "after the other: testing and the features of FedRep's head phase where a client has 16 "
    "examples or more, which fill a pass; PeFLL's embedding of small images; with adapter.dropout "
    "everything."
)


def print_methods(verbose: bool) -> None:
    """Print names, titles and summaries; with `verbose` also every option and its default."""
    outside = [name for name in METHODS if name not in (*PAPER, *NEWER)]
    groups = {"The paper's methods": PAPER, "Newer methods": NEWER, "Plug-ins": outside}
    for heading, names in groups.items():
        if names:
            table = Table(title=heading, title_justify="left", min_width=80)
            for column in ("name", "title", "what it does"):
                table.add_column(column)
            for name in names:
                method, origin = METHODS[name], METHODS.origins.get(name)
                where = f" (from {escape(origin.place)})" if origin else ""
                table.add_row(name, method.title, escape(method.summary) + where)
            console.print(table)
    for problem in METHODS.broken.values():
        console.print(f"Warning: {escape(problem)}", soft_wrap=True)
    for name, method in METHODS.items() if verbose else ():
        console.print(f"\n[bold]\\[methods.{name}][/bold]")
        console.print(f"  [dim]options of \\[training]: {escape(method.training)}[/dim]")
        for key, field in method.config.model_fields.items():
            if _is_common(key, field):
                continue
            default = escape(repr(field.default))
            console.print(f"  {key} = {default}  [dim]{escape(field.description or '')}[/dim]")
    if verbose:
        console.print()
        console.print(_variants())
        heading = "[bold]Shared passes[/bold] (engine.clients_per_pass)"
        console.print(f"\n{heading}  [dim]{IN_A_PASS}[/dim]")


def _is_common(key: str, field: FieldInfo) -> bool:
    """Whether a method inherits an option from [training] unchanged."""
    common = LocalTraining.model_fields.get(key)
    return common is not None and common.description == field.description


def _variants() -> Table:
    table = Table(title="pFedSeq's variants and the paper's results (%)", title_justify="left")
    for heading in ("variant", "in [methods.pfedseq]", "meaning", "table"):
        table.add_column(escape(heading))
    for name in PAPER_COLUMNS:
        table.add_column(data_set_title(name), justify="right")
    for v in VARIANTS:
        numbers = [published(f"table{v.table}", v.letter, name) for name in PAPER_COLUMNS]
        shown = ["–" if number is None else f"{number.mean:.2f}" for number in numbers]
        table.add_row(v.letter, escape(v.option), v.meaning, str(v.table), *shown)
    return table


def print_datasets() -> None:
    """Print names, descriptions and possible sources."""
    table = Table(title="Data sets (data.name)", title_justify="left", show_lines=True)
    for heading in ("name", "what it is", "what data.source may be"):
        table.add_column(heading)
    for name, entry in DATA_SETS.items():
        table.add_row(name, entry.summary, entry.formats)
    console.print(table)
    for problem in DATA_SETS.broken.values():
        console.print(f"Warning: {escape(problem)}", soft_wrap=True)


def print_presets() -> None:
    """Print the presets and their descriptions."""
    table = Table(title="Presets (pfedseq run NAME)", title_justify="left")
    for heading in ("name", "what it is"):
        table.add_column(heading)
    for name in preset_names():
        table.add_row(name, escape(preset_summary(name)))
    console.print(table)
