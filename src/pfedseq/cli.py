"""The command line: thin functions over the Python API, one sentence for every user's error."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from pfedseq import __version__, cli_data
from pfedseq.errors import InputError

app = typer.Typer(
    name="pfedseq",
    help="Tune a foundation model for each of many parties, without sharing their data.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    epilog="Start with: `pfedseq run configs/demo.toml`",
)

app.add_typer(cli_data.app, name="data")

_EXIT_BAD_INPUT, _EXIT_INTERRUPTED = 2, 130

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.KEY=VALUE", help="Override a config value; may be repeated."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps or auto.")]


def main() -> None:
    """Run the command line; a user's error is one sentence on stderr and exit code 2."""
    try:
        app()
    except InputError as problem:
        print(f"pfedseq: {problem}", file=sys.stderr)
        sys.exit(_EXIT_BAD_INPUT)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"pfedseq {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None: ...


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file, e.g. configs/demo.toml.")],
    method: Annotated[
        list[str] | None,
        typer.Option("--method", "-m", help="Run only this method; may be repeated."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="T, communication rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Results folder; default runs/NAME-DATE-TIME.")
    ] = None,
    device: Device = None,
    overrides: Overrides = None,
) -> None:
    """Run the methods of a config and write their results to one folder.

    Examples:

    - `pfedseq run configs/demo.toml`

    - `pfedseq run configs/demo.toml --method pfedseq --method fedrep --rounds 10 --seed 1`

    - `pfedseq run configs/demo.toml --set data.partition=dirichlet --set training.lr=0.02`
    """
    from pfedseq.config import load_config
    from pfedseq.experiment import run as run_config

    assignments = _assignments(overrides, rounds, seed, device)
    if method:
        names = ", ".join(f'"{name}"' for name in method)
        assignments.append(f"run.methods=[{names}]")
    checked = load_config(config, assignments)
    folder = out or Path("runs") / f"{checked.run.name}-{datetime.now():%Y%m%d-%H%M%S}"
    _show(checked, lambda listener: run_config(checked, folder, listener), folder)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The results folder of a run that was cut off.")],
) -> None:
    """Continue a run from its last checkpoints; the results are those of an unbroken run.

    Example: `pfedseq resume runs/demo-20250101-120000`
    """
    from pfedseq.config import load_config
    from pfedseq.experiment import resume as resume_run

    config = load_config(folder / "config.toml")
    _show(config, lambda listener: resume_run(folder, listener), folder)


@app.command()
def compare(
    config: Annotated[Path, typer.Argument(help="A TOML file, e.g. configs/demo.toml.")],
    methods: Annotated[
        str, typer.Option(help="Methods, comma-separated; the first is the reference. Or: all.")
    ] = "all",
    seeds: Annotated[str, typer.Option(help="Seeds, comma-separated.")] = "0,1,2",
    rounds: Annotated[int | None, typer.Option(help="T, communication rounds.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of all runs; default runs/compare-NAME.")
    ] = None,
    device: Device = None,
    overrides: Overrides = None,
) -> None:
    """Run methods over seeds on the same partitions and initial weights, in one table.

    What the output folder already holds is not run again; a run that was cut off is continued.

    Examples:

    - `pfedseq compare configs/demo.toml --methods pfedseq,local,fedavg,fedrep --seeds 0,1,2`

    - `pfedseq compare configs/demo.toml --methods all --seeds 0 --rounds 10`
    """
    from pfedseq.comparison import compare as compare_methods
    from pfedseq.config import load_config
    from pfedseq.methods import METHODS, find_method
    from pfedseq.report.terminal import SequenceDisplay, print_comparison

    names = list(METHODS) if methods == "all" else [n.strip() for n in methods.split(",")]
    for name in names:
        find_method(name)
    try:
        numbers = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise InputError(f"--seeds {seeds!r} must be whole numbers, e.g. 0,1,2") from None
    checked = load_config(config, _assignments(overrides, rounds, None, device))
    folder = out or Path("runs") / f"compare-{checked.run.name}"
    with SequenceDisplay(len(names) * len(numbers)) as display:
        rows = compare_methods(checked, names, numbers, folder, display.announce)
    print_comparison(rows, numbers, folder)


@app.command()
def methods(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also list options.")] = False,
) -> None:
    """List the methods that can be run.

    Example: `pfedseq methods --verbose`
    """
    from pfedseq.report.terminal import print_methods

    print_methods(verbose)


@app.command()
def datasets() -> None:
    """List the data sets that can be used.

    Example: `pfedseq datasets`
    """
    from pfedseq.report.terminal import print_datasets

    print_datasets()


def _assignments(
    overrides: list[str] | None, rounds: int | None, seed: int | None, device: str | None
) -> list[str]:
    """The config values that options stand for, as --set would give them."""
    options = {"run.rounds": rounds, "run.seed": seed, "engine.device": device}
    given = [f"{key}={value}" for key, value in options.items() if value is not None]
    return [*(overrides or []), *given]


def _show(config: Any, work: Any, folder: Path) -> None:
    """Run `work` behind a progress display, then print the table and where things are."""
    from pfedseq.report.terminal import ProgressDisplay, print_results

    for sentence in config.advice():
        print(f"pfedseq: warning: {sentence}", file=sys.stderr)
    try:
        with ProgressDisplay(config.run.methods, config.run.rounds) as display:
            summary = work(display.advance)
    except KeyboardInterrupt:
        print(f"pfedseq: interrupted; `pfedseq resume {folder}` goes on", file=sys.stderr)
        raise typer.Exit(_EXIT_INTERRUPTED) from None
    print_results(summary, folder)


if __name__ == "__main__":
    main()
