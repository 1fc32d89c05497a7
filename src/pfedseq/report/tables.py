"""Result tables, and the paths of the result files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from pfedseq.measures import find_measure
from pfedseq.methods import METHODS, method_title
from pfedseq.report.console import console, plain_table
from pfedseq.words import count, size

if TYPE_CHECKING:
    from pfedseq.data.distribution import ClientRow
    from pfedseq.data.preparing import Prepared
    from pfedseq.experiments.results import Comparison, Lead
    from pfedseq.experiments.statistics import MeanStd
    from pfedseq.measures import Measure
    from pfedseq.runs.records import MethodSummary, RunSummary

MOST_CLIENT_ROWS, MOST_METHOD_COLUMNS = 25, 6
"""Clients × methods that are printed; summary.json has all."""
WIDEST_NAME = 26
"""Characters of a client's name per line; longer names wrap."""

_EPSILONS = {
    "method": "of every client's updates in one method (its data or none)",
    "all_methods": "of all methods of the run together",
    "method_replace_one": "of one method where a client's data are replaced by any other",
    "all_methods_replace_one": "of all methods together where they are replaced",
}
"""Descriptions of the privacy guarantees (ε) of a client's updates."""


def print_prepared(prepared: Prepared) -> None:
    """Print the content and path of a store."""
    parts = [count(prepared.num_images, "image"), count(len(prepared.class_names), "class")]
    if prepared.owner_names:
        parts.append(count(len(prepared.owner_names), "owner"))
    parts.append(f"{size(prepared.num_bytes)} in {escape(str(prepared.folder))}")
    console.print(", ".join(parts), soft_wrap=True)
    print_notes(prepared.notes)


def print_notes(notes: Sequence[str]) -> None:
    """Print messages, one per line."""
    for note in notes:
        console.print(f"Note: {escape(note)}", soft_wrap=True)


def print_clients(
    rows: Sequence[ClientRow], class_names: Sequence[str], picture: Path | None, unit: str = "image"
) -> None:
    """Clients × classes: all counts where they fit, else each client's most frequent classes."""
    table = _clients_table(rows, class_names, every_class=True)
    if widths(table).maximum > console.width:
        table = _clients_table(rows, class_names, every_class=False)
    _print(table, f"{unit.capitalize()}s of each client")
    if picture is not None:
        console.print(f"Picture: {escape(str(picture))}", soft_wrap=True)


def _clients_table(
    rows: Sequence[ClientRow], class_names: Sequence[str], *, every_class: bool
) -> Table:
    table = plain_table()
    table.add_column("client", overflow="fold", max_width=WIDEST_NAME)
    table.add_column("train\n/val/test", justify="right", no_wrap=True, min_width=9)
    if class_names:  # dialogues have none
        table.add_column("classes", justify="right", no_wrap=True, min_width=7)
    for name in class_names if every_class else ():
        table.add_column(escape(name), justify="right", no_wrap=True)
    if class_names and not every_class:
        table.add_column("most frequent classes", overflow="fold")
    for row in rows:
        splits = f"{row.train}/{row.validation}/{row.test}"
        if not class_names:
            table.add_row(escape(row.name), splits)
            continue
        counts = [int(number) for number in row.class_counts]
        frequent = sorted(range(len(counts)), key=lambda c: -counts[c])[:3]
        shown = [str(number or "·") for number in counts]
        listed = ", ".join(f"{class_names[c]} {counts[c]}" for c in frequent if counts[c])
        table.add_row(
            escape(row.name),
            splits,
            str(row.num_classes),
            *(shown if every_class else [escape(listed)]),
        )
    return table


def widths(table: Table) -> Measurement:
    """The least and the most characters that a table takes."""
    return Measurement.get(console, console.options.update(width=10**6), table)


def _print(table: Table, title: str, caption: str = "") -> None:
    """A table under its title; a table's own title would be wrapped to the table's width."""
    console.print(f"[italic]{title}[/italic]")
    console.print(table)
    if caption:
        console.print(f"[dim italic]{caption}[/dim italic]")


def print_comparison(comparison: Comparison, folder: Path) -> None:
    """The scoreboard, then differences client by client, cost and traffic."""
    rows, seeds, measure = comparison.rows, comparison.seeds, comparison.measure
    several = len(seeds) > 1
    means = [mean for row in rows if (mean := row.values["client_mean"]) is not None]
    best = max(measure.rank(mean.mean) for mean in means)
    styles = [
        "bold" if (mean := row.values["client_mean"]) and measure.rank(mean.mean) == best else None
        for row in rows
    ]
    table = plain_table()
    table.add_column("method")
    for heading in ("client\nmean", "by\nsamples", "worst\nclient", "bottom\ndecile"):
        table.add_column(heading, justify="right")
    table.add_column("best on\nvalidation", justify="right")
    table.add_column("best on\ntest*", justify="right", style="dim")
    for row, style in zip(rows, styles, strict=True):
        cells = [
            "–"
            if value is None
            else _spread(measure, value, several and not key.startswith("best"))
            for key, value in row.values.items()
        ]
        table.add_row(method_title(row.method), *cells, style=style)
    spread = "±: standard deviation over seeds, not the standard error; " if several else ""
    left_out = (
        f"; the headline is not defined for {count(comparison.undefined, 'client')}, left out"
        if comparison.undefined
        else ""
    )
    kept = _KEPT[comparison.keep]
    _print(
        table,
        f"{_test(measure)}, n = {comparison.examples:,}, seed{'s' * several} "
        f"{', '.join(map(str, seeds))}; {kept}, then the best rounds",
        f"{spread}*: optimistic, selected on the test data{left_out}",
    )
    table = plain_table()
    table.add_column("method")
    for heading in ("difference\n[95 % interval]", "better\n/worse", "cost", "up", "down"):
        table.add_column(heading, justify="right")
    for row, style in zip(rows, styles, strict=True):
        table.add_row(
            method_title(row.method),
            "–" if row is rows[0] else _interval(measure, row.lead),
            "–" if row is rows[0] else f"{row.lead.wins}/{row.lead.losses}",
            "–" if row.cost_ratio is None else f"{row.cost_ratio:.2f}",
            size(round(row.bytes_up_per_round)),
            size(round(row.bytes_down_per_round)),
            style=style,
        )
    others = "" if several else "; what another seed would change is not in it"
    _print(
        table,
        f"Against {method_title(rows[0].method)}, client by client; cost and traffic of a round",
        f"difference: mean over clients × seeds and its confidence interval, positive is better"
        f"{others}; cost: seconds relative to Local; bytes: all clients",
    )
    _print_files(
        folder,
        {
            "comparison.json": "these tables and more",
            "curves.png": "learning curves of all methods",
            "METHOD/seed_N": "the run of each method and seed",
        },
    )


_KEPT = {"last": "the last round", "best_on_validation": "the round that was best on validation"}


def _test(measure: Measure) -> str:
    """'Test accuracy in %'."""
    return measure.format.label(f"Test {measure.title}", "in {}")


def _spread(measure: Measure, value: MeanStd | None, several: bool) -> str:
    """Mean ± standard deviation; a single seed has no deviation."""
    if value is None:
        return "–"
    mean = measure.format(value.mean)
    return f"{mean}±{measure.format(value.std)}" if several else mean


def _interval(measure: Measure, lead: Lead) -> str:
    """'+1.20 [+0.35, +2.05]'."""
    found = lead.interval
    mean = measure.format(found.mean, sign=True)
    if found.low is None or found.high is None:
        return mean
    low, high = (measure.format(bound, sign=True) for bound in (found.low, found.high))
    return escape(f"{mean} [{low}, {high}]")


def _print_files(folder: Path, files: dict[str, str]) -> None:
    console.print("Results:")
    for name, what in files.items():
        console.print(f"  {escape(str(folder / name))}  [dim]{what}[/dim]", soft_wrap=True)


def print_results(summary: RunSummary, folder: Path) -> None:
    """Print the tables of a run, then the paths of its results."""
    table = plain_table()
    table.add_column("method", no_wrap=True)
    for heading in ("client\nmean", "worst\nclient", "sample-\nweighted"):
        table.add_column(heading, justify="right")
    for heading in ("bytes\nup", "bytes\ndown", "seconds,\nclients", "seconds,\nserver"):
        table.add_column(heading, justify="right")
    first = next(iter(summary.methods.values()))
    measure = first.measure
    best = max(measure.rank(row.client_mean) for row in summary.methods.values())
    for name, row in summary.methods.items():
        over = row.scores.over_test
        table.add_row(
            method_title(name),
            measure.format(over.client_mean),
            measure.format(over.worst_client),
            measure.format(over.sample_weighted),
            size(row.cost.bytes_up),
            size(row.cost.bytes_down),
            f"{row.cost.client_seconds:.1f}",
            f"{row.cost.server_seconds:.1f}",
            style="bold" if measure.rank(row.client_mean) == best else None,
        )
    _print(
        table,
        f"{_test(measure)}, {_KEPT[first.keep]}, n = {sum(first.scores.test_examples):,}; traffic "
        "and time, all rounds",
        _undefined(summary),
    )
    _print_measures(summary)
    print_each_client(summary)
    _print_choices(summary)
    _print_harm(summary)
    print_notes([finding.sentence for finding in summary.findings])
    if summary.epsilon is not None:
        for name, what in _EPSILONS.items():
            if name in summary.epsilon:
                console.print(f"ε = {summary.epsilon[name]:.3g} {what}")
    tuned = "adapter and head" if first.scores.has_classes else "adapter"
    files = {
        "summary.json": "these tables and more",
        "metrics.jsonl": "every round, every client",
        "curves.png": "learning curves",
        "clients.png": "data distribution per client",
        "assessments": "each client's measures and confusions with the model it keeps",
        "adapters": f"each client's PEFT {tuned}",
        "config.toml": "the run, every option written out",
    }
    # In a federation, the adapters and the data distribution are at the sites.
    _print_files(folder, {name: what for name, what in files.items() if (folder / name).exists()})


def _undefined(summary: RunSummary) -> str:
    """Say for how many clients the headline is undefined, if any."""
    most = max(row.scores.over_test.undefined for row in summary.methods.values())
    if not most:
        return ""
    title = next(iter(summary.methods.values())).measure.title
    return f"{title} is not defined for {count(most, 'client')}, which the means leave out"


def _print_measures(summary: RunSummary) -> None:
    """Every method by every measure: mean over clients, and over all examples together."""
    if len({name for row in summary.methods.values() for name in row.scores.test}) <= 2:
        return
    shown = dict(list(summary.methods.items())[:MOST_METHOD_COLUMNS])
    table, both = _measures_table(shown, pooled=True), True
    while widths(table).maximum > console.width and (both or len(shown) > 1):
        if not both:
            shown.popitem()
        table, both = _measures_table(shown, pooled=False), False
    caption = []
    if not both:
        caption.append("those over all examples together")
    if len(shown) < len(summary.methods):
        caption.append(f"those of {count(len(summary.methods) - len(shown), 'other method')}")
    _print(
        table,
        "All measures on the test data, mean over clients"
        f"{' (all examples together)' if both else ''}",
        f"{' and '.join(caption)} are in summary.json" if caption else "",
    )


def _measures_table(methods: Mapping[str, MethodSummary], *, pooled: bool) -> Table:
    """Measures × methods: means over clients and, with `pooled`, values over all examples."""
    table = plain_table()
    table.add_column("measure")
    for name in methods:
        table.add_column(method_title(name), justify="right", no_wrap=True)
    for name in dict.fromkeys(name for row in methods.values() for name in row.scores.test):
        measure = find_measure(name)
        overs = [row.scores.over_clients(name) for row in methods.values()]
        if all(over is None for over in overs):
            continue
        cells = ["–" if over is None else measure.format(over.client_mean) for over in overs]
        if pooled:
            together = [row.pooled.get(name) for row in methods.values()]
            cells = [
                mean if value is None else f"{mean} ({measure.format(value)})"
                for mean, value in zip(cells, together, strict=True)
            ]
        table.add_row(measure.format.label(measure.title, "[{}]").replace("[", "\\["), *cells)
    return table


def _print_choices(summary: RunSummary) -> None:
    """Print the methods that stopped early or keep models of an earlier round."""
    for name, row in summary.methods.items():
        title = method_title(name)
        if row.rounds < row.planned_rounds:
            console.print(
                f"{title} stopped after round {row.rounds} of {row.planned_rounds}: nothing better "
                "on validation for run.patience evaluations"
            )
        if row.kept_round != row.rounds:
            console.print(f"{title}: the models of round {row.kept_round} are kept")


def _print_harm(summary: RunSummary) -> None:
    """Print the clients that would do better without personalisation."""
    for method, by_yardstick in summary.harmed.items():
        for yardstick, clients in by_yardstick.items():
            shown = ", ".join(clients[:MOST_CLIENT_ROWS])
            other = METHODS.get(yardstick)
            than = other.title if other else "the mean adapter alone"
            more = len(clients) - MOST_CLIENT_ROWS
            console.print(
                f"On validation {method_title(method)} does worse than {than} "
                f"for {escape(shown)}{f' and {more} more' if more > 0 else ''}",
                soft_wrap=True,
            )


def print_each_client(summary: RunSummary) -> None:
    """Print every client's headline with every method, as far as it fits a terminal."""
    methods = dict(list(summary.methods.items())[:MOST_METHOD_COLUMNS])
    columns = [row.by_client for row in methods.values()]
    first = next(iter(methods.values()))
    measure = first.measure
    names = summary.clients or tuple(map(str, range(len(first.scores.clients))))
    places = list(range(len(names)))
    caption = []
    if any(place not in column for place in places for column in columns):
        caption.append("–: absent in the last round, or not defined")
    if len(places) > MOST_CLIENT_ROWS:
        known = [place for place in places if place in columns[0]]
        places = sorted(known, key=lambda place: measure.rank(columns[0][place]))[:MOST_CLIENT_ROWS]
        title = method_title(next(iter(methods)))
        caption.append(f"the {MOST_CLIENT_ROWS} worst of {len(names)} clients with {title}")
    if len(methods) < len(summary.methods):
        caption.append(f"the first {len(methods)} methods")
    table = plain_table()
    table.add_column("client", overflow="fold", max_width=WIDEST_NAME)
    table.add_column("n", justify="right", no_wrap=True)
    for name in methods:
        table.add_column(method_title(name), justify="right", no_wrap=True)
    for place in places:
        values = (column.get(place) for column in columns)
        shown = ("–" if value is None else measure.format(value) for value in values)
        table.add_row(escape(names[place]), _examples(methods.values(), place), *shown)
    _print(
        table,
        f"{_test(measure)} of each client, {_KEPT[first.keep]}; n: its test examples",
        f"{'; '.join(caption)}; all are in summary.json" if caption else "",
    )


def _examples(rows: Iterable[MethodSummary], place: int) -> str:
    """A client's test examples, from any method that it was evaluated with."""
    for row in rows:
        if place in row.scores.clients:
            return f"{row.scores.test_examples[row.scores.clients.index(place)]:,}"
    return "–"
