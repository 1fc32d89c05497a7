"""What a person sees when something is done: tables, and where the files are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from pfedseq.learners.variants import VARIANTS
from pfedseq.methods import METHODS
from pfedseq.presets import preset_names, preset_summary
from pfedseq.report.console import console

if TYPE_CHECKING:
    from pfedseq.data.distribution import ClientRow
    from pfedseq.data.preparing import Prepared
    from pfedseq.report.comparison import ComparisonRow, MeanStd
    from pfedseq.runs.records import RunSummary

MOST_CLASS_COLUMNS = 10
"""With more classes than this, a table of clients lists only the most frequent."""


def print_prepared(prepared: Prepared) -> None:
    """What a store holds and where it is."""
    owners = f", {len(prepared.owner_names)} owners" if prepared.owner_names else ""
    console.print(
        f"{prepared.num_images:,} images, {len(prepared.class_names)} classes{owners}, "
        f"{_bytes(prepared.num_bytes)} in {escape(str(prepared.folder))}",
        soft_wrap=True,
    )
    for note in prepared.notes:
        console.print(f"Note: {escape(note)}", soft_wrap=True)


def print_clients(rows: Sequence[ClientRow], class_names: Sequence[str], picture: Path) -> None:
    """Clients × classes: all counts where they fit, else each client's most frequent classes."""
    table = Table(title="Images of each client", title_justify="left", box=SIMPLE, padding=0)
    table.add_column("client")
    table.add_column("train\n/val/test", justify="right", no_wrap=True)
    table.add_column("classes", justify="right")
    few = len(class_names) <= MOST_CLASS_COLUMNS
    for name in class_names if few else ():
        table.add_column(escape(name), justify="right")
    if not few:
        table.add_column("most frequent classes")
    for row in rows:
        counts = [int(count) for count in row.class_counts]
        frequent = sorted(range(len(counts)), key=lambda c: -counts[c])[:3]
        shown = [str(count or "·") for count in counts]
        listed = ", ".join(f"{class_names[c]} {counts[c]}" for c in frequent if counts[c])
        table.add_row(
            row.name,
            f"{row.train}/{row.validation}/{row.test}",
            str(row.num_classes),
            *(shown if few else [escape(listed)]),
        )
    console.print(table)
    console.print(f"Picture: {escape(str(picture))}", soft_wrap=True)


def print_comparison(rows: Sequence[ComparisonRow], seeds: Sequence[int], folder: Path) -> None:
    """Accuracies as mean ± std over seeds, differences by client, cost and traffic."""
    reference = METHODS[rows[0].method].title
    table = Table(
        title=f"Test accuracy in % at the last round, seeds {', '.join(map(str, seeds))}",
        caption=f"difference: per client and seed, against {reference}; cost: seconds a round "
        "relative to Local; bytes: per round, all clients",
        title_justify="left",
        caption_justify="left",
        box=SIMPLE,
        padding=0,
    )
    table.add_column("method")
    for heading in ("client\nmean", "worst\nclient", "difference", "better\n/worse"):
        table.add_column(heading, justify="right")
    for heading in ("cost", "up", "down"):
        table.add_column(heading, justify="right")
    best = max(row.client_mean.mean for row in rows)
    for row in rows:
        table.add_row(
            METHODS[row.method].title,
            _percent(row.client_mean),
            _percent(row.worst_client),
            f"{100 * row.difference.mean:+.2f}±{100 * row.difference.std:.2f}",
            f"{row.wins}/{row.losses}",
            "–" if row.cost_ratio is None else f"{row.cost_ratio:.2f}",
            _bytes(round(row.bytes_up_per_round)),
            _bytes(round(row.bytes_down_per_round)),
            style="bold" if row.client_mean.mean == best else None,
        )
    console.print(table)
    console.print(f"Results: {escape(str(folder / 'comparison.json'))}", soft_wrap=True)


def _percent(value: MeanStd) -> str:
    return f"{100 * value.mean:.2f}±{100 * value.std:.2f}"


def print_results(summary: RunSummary, folder: Path) -> None:
    """The table of a run, then the paths of everything it left behind."""
    table = Table(
        title="Test accuracy in %, last round; traffic and time, all rounds",
        title_justify="left",
        box=SIMPLE,
        padding=0,
    )
    table.add_column("method")
    for heading in ("client\nmean", "worst\nclient", "sample-\nweighted"):
        table.add_column(heading, justify="right")
    for heading in ("bytes\nup", "bytes\ndown", "seconds,\nclients", "seconds,\nserver"):
        table.add_column(heading, justify="right")
    best = max(row.client_mean for row in summary.methods.values())
    for name, row in summary.methods.items():
        style = "bold" if row.client_mean == best else None
        table.add_row(
            METHODS[name].title,
            f"{100 * row.client_mean:.2f}",
            f"{100 * row.worst_client:.2f}",
            f"{100 * row.sample_weighted:.2f}",
            _bytes(row.cost.bytes_up),
            _bytes(row.cost.bytes_down),
            f"{row.cost.client_seconds:.1f}",
            f"{row.cost.server_seconds:.1f}",
            style=style,
        )
    console.print(table)
    console.print("Results:")
    for name, what in (
        ("summary.json", "this table and more"),
        ("metrics.jsonl", "every round, every client"),
        ("curves.png", "learning curves"),
        ("adapters", "each client's PEFT adapter and head"),
        ("config.toml", "the run, every option written out"),
    ):
        console.print(f"  {escape(str(folder / name))}  [dim]{what}[/dim]", soft_wrap=True)


def print_methods(verbose: bool) -> None:
    """Names, titles and one line each; with `verbose` every option and its default."""
    table = Table(title="Methods", title_justify="left")
    for heading in ("name", "title", "what it does"):
        table.add_column(heading)
    for name, method in METHODS.items():
        table.add_row(name, method.title, method.summary)
    console.print(table)
    for name, method in METHODS.items() if verbose else ():
        console.print(f"\n[bold]\\[methods.{name}][/bold]")
        for key, field in method.config.model_fields.items():
            default = escape(repr(field.default))
            console.print(f"  {key} = {default}  [dim]{escape(field.description or '')}[/dim]")
    if verbose:
        console.print()
        console.print(_variants())


def _variants() -> Table:
    table = Table(title="pFedSeq's variants and the paper's results (%)", title_justify="left")
    for heading in ("variant", "in [methods.pfedseq]", "meaning", "table"):
        table.add_column(escape(heading))
    for heading in ("CIFAR-100", "DomainNet"):
        table.add_column(heading, justify="right")
    for v in VARIANTS:
        paper = (f"{v.cifar100:.2f}", f"{v.domainnet:.2f}")
        table.add_row(v.letter, escape(v.option), v.meaning, str(v.table), *paper)
    return table


def print_datasets() -> None:
    """Names, what they are, and what they are read from."""
    from pfedseq.data.registry import DATA_SETS

    table = Table(title="Data sets (data.name)", title_justify="left", show_lines=True)
    for heading in ("name", "what it is", "what data.source may be"):
        table.add_column(heading)
    for name, entry in DATA_SETS.items():
        table.add_row(name, entry.summary, entry.formats)
    console.print(table)


def print_presets() -> None:
    """Names of the configs that ship with the package, and what each is."""
    table = Table(title="Presets (pfedseq run NAME)", title_justify="left")
    for heading in ("name", "what it is"):
        table.add_column(heading)
    for name in preset_names():
        table.add_row(name, escape(preset_summary(name)))
    console.print(table)


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
