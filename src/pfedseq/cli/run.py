"""`pfedseq run`, `resume` and `compare`: the commands that train."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from pfedseq.cli.options import (
    ConfigName,
    Device,
    Overrides,
    Plugins,
    Rounds,
    Track,
    assignments,
    interruptible,
    load_plugins,
    numbers,
    tell,
    tell_once,
)
from pfedseq.errors import InputError


def run(
    config: ConfigName,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", "-m", help="Run only this method, e.g. fedavg; repeatable."),
    ] = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="Random seed, e.g. 1.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Results folder. Default: runs/NAME-DATE-TIME.")
    ] = None,
    device: Device = None,
    track: Track = None,
    plugin: Plugins = None,
    overrides: Overrides = None,
) -> None:
    """Run the methods of a config and write their results to one folder.

    If `--out` holds an interrupted run of the same config, it is continued. Ctrl-C stops after the
    current round, a second Ctrl-C at once; no finished round is lost.

    Examples:

    - `pfedseq run demo`

    - `pfedseq run demo --method pfedseq --method fedrep --rounds 10 --seed 1`

    - `pfedseq run demo --set data.partition=dirichlet --set training.lr=0.02`

    - `pfedseq run demo --plugin my_method.py --method my_method`

    - `pfedseq run demo --track tensorboard`
    """
    from pfedseq.api import run as run_config
    from pfedseq.config import load_config

    values = assignments(overrides, rounds, seed, device)
    if method:
        names = ", ".join(f'"{name}"' for name in method)
        values.append(f"run.methods=[{names}]")
    checked = load_config(config, values, plugin or ())
    folder = out or Path("runs") / f"{checked.run.name}-{datetime.now():%Y%m%d-%H%M%S}"
    _show(checked, lambda listener: run_config(checked, folder, listener, tell), folder, track)


def resume(
    folder: Annotated[
        Path, typer.Argument(help="Results folder of an interrupted run, e.g. runs/demo.")
    ],
    track: Track = None,
    plugin: Plugins = None,
) -> None:
    """Continue an interrupted run; the results equal those of an uninterrupted one.

    Example: `pfedseq resume runs/demo-20250101-120000`
    """
    from pfedseq.api import resume as resume_run
    from pfedseq.config import load_config

    load_plugins(plugin)
    if not (folder / "config.toml").exists():
        raise InputError(f"{folder} is not a results folder: it has no config.toml")
    config = load_config(folder / "config.toml")
    _show(config, lambda listener: resume_run(folder, listener, tell), folder, track)


def compare(
    config: ConfigName,
    methods: Annotated[
        str,
        typer.Option(help="Comma-separated; the first is the reference. Or: paper, newer, all."),
    ] = "paper",
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds.")] = "0,1,2",
    rounds: Rounds = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of all runs. Default: runs/compare-NAME.")
    ] = None,
    device: Device = None,
    track: Track = None,
    plugin: Plugins = None,
    overrides: Overrides = None,
) -> None:
    """Compare methods over several seeds, with paired differences and confidence intervals.

    All methods share partitions and initial weights. Finished runs in the output folder are not
    repeated; an interrupted one is continued.

    Examples:

    - `pfedseq compare demo --methods pfedseq,local,fedavg,fedrep --seeds 0,1,2`

    - `pfedseq compare demo --methods all --seeds 0 --rounds 10`

    - `pfedseq compare demo --track tensorboard`, then `tensorboard --logdir runs/compare-demo`
    """
    from pfedseq.config import load_config
    from pfedseq.experiments.results import compare_runs
    from pfedseq.methods import chosen
    from pfedseq.report.figures import draw_comparison, draw_curves
    from pfedseq.report.progress import SequenceDisplay
    from pfedseq.report.tables import print_comparison
    from pfedseq.report.tracking import tracked
    from pfedseq.runs.folder import RunFolder
    from pfedseq.runs.sweep import methods_by_seeds, sweep

    load_plugins(plugin)
    names = chosen(methods)
    seed_numbers = numbers(seeds, "--seeds")
    if not seed_numbers:
        raise InputError("--seeds must name at least one seed, e.g. 0,1,2")
    checked = load_config(config, assignments(overrides, rounds, None, device), plugin or ())
    folder = out or Path("runs") / f"compare-{checked.run.name}"
    entries = methods_by_seeds(checked, names, seed_numbers)
    with (
        interruptible("the same command continues"),
        SequenceDisplay(len(entries), folder) as display,
        tracked(display.announce, track, entries, folder, tell) as announce,
    ):
        sweep(entries, folder, announce, draw_curves, tell_once())
    runs = {name: [RunFolder(folder / name / f"seed_{s}") for s in seed_numbers] for name in names}
    comparison = compare_runs(runs, seed_numbers)
    comparison.write(folder / "comparison.json")
    draw_comparison(runs, folder / "curves.png")
    print_comparison(comparison, folder)


def _show(config: Any, work: Any, folder: Path, track: str | None) -> None:
    """Run `work` with a progress display, then print the tables and the result paths."""
    from pfedseq.report.progress import ProgressDisplay
    from pfedseq.report.tables import print_results
    from pfedseq.report.tracking import open_tracking
    from pfedseq.runs.folder import RunFolder

    tracking = open_tracking(track, config, folder, tell) if track else None

    for sentence in config.advice():
        print(f"pfedseq: warning: {sentence}", file=sys.stderr)
    with interruptible(f"`pfedseq resume {folder}` continues"):
        home = RunFolder(folder)
        # Do not show the rounds of a run with other options as progress of this one.
        earlier = home.by_method() if home.other_options(config) is None else {}
        with ProgressDisplay(config.run.methods, config.run.rounds, earlier) as display:

            def listen(record: Any) -> None:
                display.advance(record)
                if tracking is not None:
                    tracking.log(record)

            try:
                summary = work(listen)
            finally:
                if tracking is not None:
                    tracking.close()
    print_results(summary, folder)
