"""Reproduces a table or figure of the paper: runs what is missing, then writes the results."""

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
from pfedseq.experiments.markdown import Options, write_markdown
from pfedseq.experiments.results_file import KeptRun, KeptTrial, ResultsFile
from pfedseq.experiments.settings import Scenario, differences, find_scenarios
from pfedseq.experiments.sheet import Sheet, fill_sheet
from pfedseq.experiments.tune import Trial
from pfedseq.experiments.tuned import Chosen, Tuning
from pfedseq.experiments.writing import write_csv, write_latex
from pfedseq.files import write_atomically
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.records import MethodSummary
from pfedseq.runs.run import Listener, Tell, tell_nobody
from pfedseq.runs.sweep import SweepEntry, single, sweep


@dataclass(frozen=True)
class Reproduction:
    """An experiment in a setting: its runs and its output files.

    All experiments of a setting share one folder, so that a run which several of them need is made
    once. Runs are OUT/runs/DATASET/ARM/seed_S; what is made of them is OUT/EXPERIMENT.*. With a
    `tuning`, every method is tuned first, in OUT/tune.
    """

    experiment: Experiment
    scenarios: tuple[Scenario, ...]
    seeds: tuple[int, ...]
    out: Path
    overrides: tuple[str, ...] = ()
    choice: Choice = field(default_factory=Choice)
    tuning: Tuning | None = None

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
        tuning: Tuning | None = None,
    ) -> Reproduction:
        """Parse the user's choice; see `find_experiment` and `find_scenarios`."""
        choice = choice or Choice()
        experiment = find_experiment(name, choice)
        scenarios = find_scenarios(setting, data_sets, experiment.data_sets)
        if not seeds:
            raise InputError("at least one seed is needed")
        if tuning is not None:
            tuning.check(seeds)
        return cls(
            experiment, tuple(scenarios), tuple(seeds), out, tuple(overrides), choice, tuning
        )

    @cached_property
    def configs(self) -> dict[str, Config]:
        """The config of each scenario, without the options of an arm."""
        return {s.name: s.load(self.overrides) for s in self.scenarios}

    @cached_property
    def arms_of(self) -> dict[str, list[Arm]]:
        """The arms of each scenario; a short run may exclude some."""
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

    def entries(self) -> list[SweepEntry]:
        """All runs, ordered so that consecutive ones share data and backbone."""
        return [
            SweepEntry(f"{scenario.name}/{arm.key}/seed_{seed}", single(config, arm.method, seed))
            for scenario in self.scenarios
            for configs in [self._configs_of_arms(scenario)]
            for seed in self.seeds
            for arm, config in configs.items()
        ]

    def _configs_of_arms(self, scenario: Scenario) -> dict[Arm, Config]:
        """The config of each row, with the tuned options of its method."""
        arms, chosen = self.arms_of[scenario.name], self.chosen(scenario)
        if self.tuning is None:
            return {arm: scenario.load((*self.overrides, *arm.overrides)) for arm in arms}
        config = self.configs[scenario.name]
        return {arm: chosen.applied(config, arm.method, arm.overrides) for arm in arms}

    def chosen(self, scenario: Scenario) -> Chosen:
        """What tuning chose in a scenario."""
        return Chosen(self.out / "tune" / scenario.name)

    @property
    def num_runs(self) -> int:
        """The total number of runs, including trials."""
        runs = len(self.seeds) * sum(map(len, self.arms_of.values()))
        if self.tuning is None:
            return runs
        methods = sum(len(self.methods(scenario)) for scenario in self.scenarios)
        return runs + methods * self.tuning.trials * len(self.tuning.seeds)

    def methods(self, scenario: Scenario) -> list[str]:
        """The methods of a scenario's lines, each once."""
        return list(dict.fromkeys(arm.method for arm in self.arms_of[scenario.name]))

    def folders(self, scenario: Scenario, arm: Arm) -> dict[int, RunFolder]:
        """The finished runs of an arm, by seed."""
        places = {
            seed: RunFolder(self.runs / scenario.name / arm.key / f"seed_{seed}")
            for seed in self.seeds
        }
        return {seed: folder for seed, folder in places.items() if folder.summary.exists()}

    def check(self) -> None:
        """Check for missing images or values before starting long runs."""
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
    announce: Callable[[SweepEntry], Listener | None],
    finished: Callable[[RunFolder], None],
    tell: Tell = tell_nobody,
) -> dict[str, str]:
    """Run what is missing; return the reasons of failed runs by label.

    A run that diverges does not stop the others.
    """
    wanted.check()
    if wanted.tuning is not None:
        for scenario in wanted.scenarios:
            trial = scenario.load((*wanted.overrides, *wanted.tuning.overrides))
            methods = wanted.methods(scenario)
            wanted.chosen(scenario).search(trial, methods, wanted.tuning, announce, tell)
    problems: dict[str, str] = {}

    def failed(entry: SweepEntry, problem: InputError) -> None:
        problems[entry.label] = str(problem)
        tell(f"{entry.label} is left out: {problem}")

    sweep(wanted.entries(), wanted.runs, announce, finished, tell, failed)
    return problems


def finished_runs(wanted: Reproduction) -> ResultsFile:
    """The number of finished runs and trials."""
    file = ResultsFile()
    for scenario in wanted.scenarios:
        name, chosen = scenario.name, wanted.chosen(scenario)
        for method in wanted.methods(scenario):
            file.add([KeptTrial(name, trial) for trial in chosen.trials(method)])
        for arm in wanted.arms_of[name]:
            values = chosen.best(arm.method).values
            file.add(
                [
                    KeptRun(name, arm.key, arm.method, seed, values, _summary(folder, arm))
                    for seed, folder in wanted.folders(scenario, arm).items()
                ]
            )
    return file


def _summary(folder: RunFolder, arm: Arm) -> MethodSummary:
    return folder.read_summary().methods[arm.method]


def collect(wanted: Reproduction, found: ResultsFile) -> Sheet:
    """The sheet of the finished runs with the chosen seeds."""
    runs: dict[tuple[str, str], Mapping[int, MethodSummary]] = {}
    for scenario in wanted.scenarios:
        for arm in wanted.arms_of[scenario.name]:
            every = found.runs(scenario.name, arm.key)
            runs[scenario.name, arm.key] = {s: every[s] for s in wanted.seeds if s in every}
    return fill_sheet(
        wanted.experiment,
        wanted.arms,
        wanted.scenarios,
        wanted.seeds,
        runs,
        {s.title: differences(wanted.configs[s.name], s) for s in wanted.scenarios},
        {name: config.run.rounds for name, config in wanted.configs.items()},
    )


def write_results(wanted: Reproduction, sheet: Sheet, found: ResultsFile) -> list[Path]:
    """Write CSV, LaTeX, Markdown and figures of an experiment; return the files."""
    stem = wanted.out / wanted.experiment.name
    files = []
    if wanted.experiment.kind != "curves":
        files += [stem.with_suffix(suffix) for suffix in (".csv", ".tex", ".md")]
        write_csv(sheet, files[0])
        write_latex(sheet, files[1])
        write_markdown(sheet, _options_as_text(wanted, found), files[2])
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


def _options_as_text(wanted: Reproduction, found: ResultsFile) -> Options:
    return {
        (scenario.name, arm.key): Trial(arm.method, found.options(scenario.name, arm.key)).shown(
            ", "
        )
        for scenario in wanted.scenarios
        for arm in wanted.arms_of[scenario.name]
    }


def draw_partitions(wanted: Reproduction) -> list[Path]:
    """Write class × client figures and counts of every scenario, for the first seed."""
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
