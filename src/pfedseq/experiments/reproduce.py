"""Make a table or figure of the paper: run what is missing, then write what is there."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pfedseq.config import Config
from pfedseq.data.distribution import describe_data, draw_distribution
from pfedseq.data.loading import load_data
from pfedseq.errors import InputError
from pfedseq.experiments import pictures
from pfedseq.experiments.catalogue import Arm, Choice, Experiment, find_experiment
from pfedseq.experiments.settings import Scenario, differences, find_scenarios
from pfedseq.experiments.sheet import Sheet, fill_sheet
from pfedseq.experiments.writing import write_csv, write_latex
from pfedseq.files import write_atomically
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.records import MethodSummary
from pfedseq.runs.run import Listener, Tell, tell_nobody
from pfedseq.runs.sweep import Entry, single, sweep


@dataclass(frozen=True)
class Reproduction:
    """An experiment in a setting: which runs it needs and where everything goes.

    All experiments of a setting share one folder, so that a run which several of them need is made
    once. Runs are OUT/runs/DATASET/ARM/seed_S; what is made of them is OUT/EXPERIMENT.*.
    """

    experiment: Experiment
    scenarios: tuple[Scenario, ...]
    seeds: tuple[int, ...]
    out: Path
    overrides: tuple[str, ...] = ()
    choice: Choice = field(default_factory=Choice)

    @classmethod
    def of(
        cls,
        name: str,
        setting: str,
        data_sets: Sequence[str],
        seeds: Sequence[int],
        out: Path,
        overrides: Sequence[str] = (),
        choice: Choice | None = None,
    ) -> Reproduction:
        """As a user says it; see `find_experiment` and `find_scenarios`."""
        choice = choice or Choice()
        experiment = find_experiment(name, choice)
        scenarios = find_scenarios(setting, data_sets, experiment.data_sets)
        if not seeds:
            raise InputError("at least one seed is needed")
        return cls(experiment, tuple(scenarios), tuple(seeds), out, tuple(overrides), choice)

    @cached_property
    def configs(self) -> dict[str, Config]:
        """Each scenario's, before any arm's options."""
        return {s.name: s.load(self.overrides) for s in self.scenarios}

    @cached_property
    def arms_of(self) -> dict[str, list[Arm]]:
        """Each scenario's arms: how many rounds it has may leave some out."""
        return {
            s.name: self.experiment.arms(self.configs[s.name], self.choice) for s in self.scenarios
        }

    @property
    def arms(self) -> list[Arm]:
        """All lines of the table, in order."""
        return list(dict.fromkeys(arm for arms in self.arms_of.values() for arm in arms))

    @property
    def runs(self) -> Path:
        """The folder of all runs."""
        return self.out / "runs"

    def entries(self) -> list[Entry]:
        """The runs that are needed, ordered so that neighbours share data and backbone."""
        return [
            Entry(
                f"{scenario.name}/{arm.key}/seed_{seed}",
                single(scenario.load((*self.overrides, *arm.overrides)), arm.method, seed),
            )
            for scenario in self.scenarios
            for seed in self.seeds
            for arm in self.arms_of[scenario.name]
        ]

    def folders(self, scenario: Scenario, arm: Arm) -> dict[int, RunFolder]:
        """The finished runs of an arm, by seed."""
        places = {
            seed: RunFolder(self.runs / scenario.name / arm.key / f"seed_{seed}")
            for seed in self.seeds
        }
        return {seed: folder for seed, folder in places.items() if folder.summary.exists()}

    def check(self) -> None:
        """Refuse, before hours of work, what cannot end well: no images, or nothing to vary."""
        for name, config in self.configs.items():
            varied = [arm for arm in self.arms_of[name] if arm.value is not None]
            if self.experiment.takes_values and not varied:
                raise InputError(
                    f"none of the values is below run.rounds = {config.run.rounds}: "
                    "choose smaller ones with --values"
                )
            load_data(config.data, self.seeds[0])


def run_missing(
    wanted: Reproduction,
    announce: Callable[[Entry], Listener | None],
    finished: Callable[[RunFolder], None],
    tell: Tell = tell_nobody,
) -> dict[str, str]:
    """Make the runs that are not there yet; returns why some could not be made, by label.

    One that diverges does not stop the others.
    """
    wanted.check()
    problems: dict[str, str] = {}

    def failed(entry: Entry, problem: InputError) -> None:
        problems[entry.label] = str(problem)
        tell(f"{entry.label} is left out: {problem}")

    sweep(wanted.entries(), wanted.runs, announce, finished, tell, failed)
    return problems


def collect(wanted: Reproduction) -> Sheet:
    """The sheet of what is finished by now."""
    runs: dict[tuple[str, str], Mapping[int, MethodSummary]] = {}
    for scenario in wanted.scenarios:
        for arm in wanted.arms_of[scenario.name]:
            runs[scenario.name, arm.key] = {
                seed: folder.read_summary().methods[arm.method]
                for seed, folder in wanted.folders(scenario, arm).items()
            }
    return fill_sheet(
        wanted.experiment,
        wanted.arms,
        wanted.scenarios,
        wanted.seeds,
        runs,
        {s.title: differences(wanted.configs[s.name], s) for s in wanted.scenarios},
        {name: config.run.rounds for name, config in wanted.configs.items()},
    )


def write_results(wanted: Reproduction, sheet: Sheet) -> list[Path]:
    """CSV, LaTeX and pictures of an experiment; returns the files."""
    stem = wanted.out / wanted.experiment.name
    files = []
    if wanted.experiment.kind != "curves":
        files += [stem.with_suffix(".csv"), stem.with_suffix(".tex")]
        write_csv(sheet, files[0])
        write_latex(sheet, files[1])
        draw = {
            "accuracy": pictures.draw_accuracies,
            "sweep": pictures.draw_sweep,
            "seconds": pictures.draw_seconds,
            "traffic": pictures.draw_traffic,
        }[wanted.experiment.kind]
        files += draw(sheet, stem)
    if wanted.experiment.kind in ("accuracy", "sweep", "curves"):
        curves = {
            scenario: {
                arm: list(wanted.folders(scenario, arm).values())
                for arm in wanted.arms_of[scenario.name]
            }
            for scenario in wanted.scenarios
        }
        curved = (
            stem if wanted.experiment.kind == "curves" else stem.with_name(f"{stem.name}-curves")
        )
        files += pictures.draw_learning_curves(curves, curved)
    return files


def draw_partitions(wanted: Reproduction) -> list[Path]:
    """Class × client pictures and counts of every scenario, for the first seed."""
    files = []
    for scenario in wanted.scenarios:
        data = load_data(wanted.configs[scenario.name].data, wanted.seeds[0])
        stem = wanted.out / f"partitions-{scenario.name}"
        for suffix in (".png", ".svg"):
            files.append(stem.with_suffix(suffix))
            draw_distribution(data, files[-1])
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["client", "train", "validation", "test", *data.examples.class_names])
        for row in describe_data(data):
            writer.writerow([row.name, row.train, row.validation, row.test, *row.class_counts])
        files.append(stem.with_suffix(".csv"))
        write_atomically(files[-1], text.getvalue())
    return files
