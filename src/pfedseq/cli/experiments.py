"""`pfedseq reproduce`, `plan` and `tune`: the paper's tables, costs and grid searches."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

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
    numbers,
    tell,
    tell_once,
    words,
)
from pfedseq.errors import InputError

EXIT_INCOMPLETE = 3


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A table or figure, e.g. table1; without it, list them.", show_default=False
        ),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="paper, lab, demo, or the path of a TOML file.")
    ] = "lab",
    dataset: Annotated[
        str | None, typer.Option(help="Comma-separated data sets. Default: the paper's.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds.")] = "0,1,2",
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, comma-separated, or: all, newer, yardsticks (pFedSeq without its "
            "parts, with server momentum instead, and with both); default: the paper's."
        ),
    ] = None,
    trials: Annotated[
        int,
        typer.Option(
            min=0,
            help="Tune each method first, with so many trials on validation data, e.g. 8; 0: the "
            "preset's options.",
        ),
    ] = 0,
    trial_seeds: Annotated[str, typer.Option(help="Seeds of the trials.")] = "100",
    trial_rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of a trial. Default: as many as a run's.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Also add the results to this file, e.g. results.jsonl."),
    ] = None,
    recorded: Annotated[
        Path | None,
        typer.Option("--from", help="Run nothing; show the results of such a file."),
    ] = None,
    values: Annotated[
        str | None, typer.Option(help="Comma-separated values of a figure's axis, e.g. 1,5,10.")
    ] = None,
    finished: Annotated[
        bool, typer.Option("--finished", help="Run nothing; show what is finished so far.")
    ] = False,
    rounds: Rounds = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder. Default: runs/reproduce-PRESET.")
    ] = None,
    device: Device = None,
    track: Track = None,
    overrides: Overrides = None,
) -> None:
    """Reproduce a table or figure of the paper, with the paper's numbers beside ours.

    Finished runs are not repeated and interrupted ones continue; runs that several tables need are
    made once. Started in two terminals, both work on the same table.

    Examples:

    - `pfedseq reproduce` lists tables and figures with the time each takes on this machine

    - `pfedseq reproduce table1 --preset lab --dataset pacs --seeds 0`

    - `pfedseq reproduce length --values 1,5,10 --preset demo`

    - `pfedseq reproduce table1 --finished` shows the table so far

    - `pfedseq reproduce table1 --methods all --dataset pacs --trials 8 --record results.jsonl`
    """
    from pfedseq.experiments.catalogue import EXPERIMENTS, Choice
    from pfedseq.experiments.estimate import measure_paces
    from pfedseq.experiments.reproduce import (
        Reproduction,
        collect,
        draw_partitions,
        finished_runs,
        run_missing,
        write_results,
    )
    from pfedseq.experiments.results_file import ResultsFile
    from pfedseq.experiments.tuned import Tuning
    from pfedseq.methods import chosen
    from pfedseq.report.experiments import print_experiments, print_made, print_sheet
    from pfedseq.report.figures import draw_curves
    from pfedseq.report.progress import SequenceDisplay, StepDisplay
    from pfedseq.report.tracking import tracked

    stem = Path(preset).stem if preset.endswith(".toml") else preset
    folder = out or Path("runs") / (f"reproduce-{stem}" + "-tuned" * bool(trials))
    listed = words(methods)
    named = chosen(",".join(word for word in listed if word != "yardsticks"))
    yardsticks = bool({"yardsticks", "all"} & {*listed})
    choice = Choice(tuple(named), tuple(numbers(values, "--values")), yardsticks)
    tuning = Tuning(trials, tuple(numbers(trial_seeds, "--trial-seeds")), trial_rounds)

    def wanted(called: str) -> Reproduction:
        return Reproduction.of(
            called,
            preset,
            words(dataset),
            numbers(seeds, "--seeds"),
            folder,
            assignments(overrides, rounds, None, device),
            choice,
            tuning if trials else None,
        )

    if name is None:
        everything = [wanted(called) for called in EXPERIMENTS]
        scenarios = dict.fromkeys(s for one in everything for s in one.scenarios)
        with StepDisplay() as steps:
            paces = measure_paces(list(scenarios), everything[0].overrides, steps.report)
        print_experiments(everything, paces)
        return
    reproduction = wanted(name)
    if reproduction.experiment.kind == "partitions":
        print_made(draw_partitions(reproduction), {})
        return
    problems = {}
    if not finished and recorded is None:
        entries, runs = reproduction.entries(), reproduction.runs
        with (
            interruptible("the same command continues"),
            SequenceDisplay(reproduction.num_runs, runs) as display,
            tracked(display.announce, track, entries, runs, tell) as announce,
        ):
            problems = run_missing(reproduction, announce, draw_curves, tell_once())
    found = finished_runs(reproduction) if recorded is None else ResultsFile.read(recorded)
    sheet = collect(reproduction, found)
    if not any(cell.ours for column in sheet.columns for cell in column.cells):
        raise InputError(f"{recorded or folder} holds no finished run of {name} yet")
    files = write_results(reproduction, sheet, found)
    if record is not None:
        kept = ResultsFile.read(record) if record.exists() else ResultsFile()
        kept.add(list(found.lines.values()))
        kept.write(record)
        files.append(record)
    print_sheet(sheet)
    print_made(files, problems)
    if problems:
        raise typer.Exit(EXIT_INCOMPLETE)


def plan(
    config: ConfigName,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", "-m", help="Plan only this method, e.g. pfedseq; repeatable."),
    ] = None,
    rounds: Rounds = None,
    device: Device = None,
    plugin: Plugins = None,
    overrides: Overrides = None,
) -> None:
    """Estimate the time, traffic, memory and disk space of a run before starting it.

    Every method runs on a few batches first, so the times are those of this machine at its current
    load.

    Examples:

    - `pfedseq plan lab/pacs`

    - `pfedseq plan cifar100 --method pfedseq --method perada --device cuda`
    """
    start = time.perf_counter()
    from pfedseq.config import load_config
    from pfedseq.experiments.plan import plan as make_plan
    from pfedseq.experiments.plan import startup_seconds
    from pfedseq.report.experiments import print_plan
    from pfedseq.report.progress import StepDisplay
    from pfedseq.runs.world import World

    loading = time.perf_counter() - start
    values = assignments(overrides, rounds, None, device)
    if method:
        names = ", ".join(f'"{name}"' for name in method)
        values.append(f"run.methods=[{names}]")
    checked = load_config(config, values, plugin or ())
    with StepDisplay() as display:
        found = make_plan(World.build(checked), checked.run.methods, display.report)
    print_plan(replace(found, startup_seconds=loading + startup_seconds(checked)))


def tune(
    config: ConfigName,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, comma-separated, or: paper, newer, all; default: the config's."
        ),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Most trials per method.")] = 8,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V1,V2",
            help="Values to try instead, e.g. training.lr=0.01,0.1; may be repeated.",
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds of each trial.")] = "0",
    rounds: Rounds = None,
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/tune-NAME.")] = None,
    device: Device = None,
    plugin: Plugins = None,
    overrides: Overrides = None,
) -> None:
    """Search for good options on validation data, with the same budget for every method.

    First the local learning rate is searched, up and down from the config's own, then the method's
    own options at the best rate. --grid tries the values you name instead. The best trial has the
    best run.headline, and among equals the lowest loss. Test data are never read; finished trials
    are not repeated.

    Examples:

    - `pfedseq tune photos.toml --methods pfedseq,local --rounds 20`

    - `pfedseq tune demo --grid training.lr=0.02,0.1 --grid methods.ditto.proximal_weight=0.1,1`

    - `pfedseq run runs/tune-photos/winner.toml`
    """
    from pfedseq.config import load_config
    from pfedseq.experiments.tune import read_grid, winners, write_tuning
    from pfedseq.experiments.tune import tune as search
    from pfedseq.measures import find_measure
    from pfedseq.methods import chosen
    from pfedseq.report.experiments import print_made, print_trials
    from pfedseq.report.progress import SequenceDisplay

    checked = load_config(config, assignments(overrides, rounds, None, device), plugin or ())
    names = chosen(methods or "") or list(checked.run.methods)
    seed_numbers = numbers(seeds, "--seeds")
    if not seed_numbers:
        raise InputError("--seeds must name at least one seed, e.g. 0")
    folder = out or Path("runs") / f"tune-{checked.run.name}"
    with (
        interruptible("the same command continues"),
        SequenceDisplay(len(names) * trials * len(seed_numbers), folder) as display,
    ):
        found = search(
            checked,
            names,
            seed_numbers,
            trials,
            folder,
            display.announce,
            tell_once(),
            read_grid(grid) if grid else None,
        )
    files = write_tuning(checked, found, folder)
    print_trials(found, find_measure(checked.run.headline))
    print_made(files, {})
    if winners(found):
        print(f"Run the best with: pfedseq run {files[-1]}")
