"""What a person sees: progress while it runs, tables when it is done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from pfedseq.learners.variants import VARIANTS
from pfedseq.methods import METHODS
from pfedseq.metrics import RoundRecord

if TYPE_CHECKING:
    from pfedseq.comparison import ComparisonRow, MeanStd
    from pfedseq.config import Config
    from pfedseq.data.distribution import ClientRow
    from pfedseq.data.preparing import Prepared
    from pfedseq.experiment import Listener

console = Console()

MOST_CLASS_COLUMNS = 10
"""With more classes than this, a table of clients lists only the most frequent."""


class ProgressDisplay:
    """One bar per method with its accuracy and the time left; silent where nobody watches."""

    def __init__(self, methods: Sequence[str], rounds: int) -> None:
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracy]:>18}"),
            TextColumn("elapsed"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        for name in methods:
            self._bars[name] = self._progress.add_task(
                METHODS[name].title, total=rounds, accuracy="", start=False
            )

    def __enter__(self) -> ProgressDisplay:
        self._progress.start()
        self._progress.start_task(next(iter(self._bars.values())))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def advance(self, record: RoundRecord) -> None:
        """Show one finished round."""
        bar = self._bars[record["method"]]
        self._progress.update(bar, completed=record["round"])
        if "client_mean" in record:
            accuracy = f"accuracy {100 * record['client_mean']:5.1f} %"
            self._progress.update(bar, accuracy=accuracy)
        if self._progress.tasks[bar].finished:
            waiting = [b for b in self._bars.values() if not self._progress.tasks[b].started]
            if waiting:
                self._progress.start_task(waiting[0])


class SequenceDisplay:
    """One bar for each run of a comparison, as they come; silent where nobody watches."""

    def __init__(self, num_runs: int) -> None:
        self._num_runs, self._started = num_runs, 0
        self._display: ProgressDisplay | None = None

    def __enter__(self) -> SequenceDisplay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._display is not None:
            self._display.__exit__(kind, error, trace)

    def announce(self, method: str, seed: int, config: Config) -> Listener:
        """Open the next run's bar."""
        if self._display is not None:
            self._display.__exit__(None, None, None)
        self._started += 1
        if console.is_terminal:
            console.print(
                f"[dim]run {self._started} of at most {self._num_runs}, seed {seed}[/dim]"
            )
        self._display = ProgressDisplay((method,), config.run.rounds).__enter__()
        return self._display.advance


class StepDisplay:
    """Named steps of some work, each with a count and the time left."""

    def __init__(self) -> None:
        self._steps: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> StepDisplay:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def report(self, step: str, done: int, total: int) -> None:
        """`done` of `total` of a step."""
        if step not in self._steps:
            self._steps[step] = self._progress.add_task(step, total=total)
        self._progress.update(self._steps[step], completed=done, total=total)


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


def print_results(summary: dict[str, Any], folder: Path) -> None:
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
    best = max(row["client_mean"] for row in summary["methods"].values())
    for name, row in summary["methods"].items():
        style = "bold" if row["client_mean"] == best else None
        table.add_row(
            METHODS[name].title,
            f"{100 * row['client_mean']:.2f}",
            f"{100 * row['worst_client']:.2f}",
            f"{100 * row['sample_weighted']:.2f}",
            _bytes(row["bytes_up"]),
            _bytes(row["bytes_down"]),
            f"{row['client_seconds']:.1f}",
            f"{row['server_seconds']:.1f}",
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


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
