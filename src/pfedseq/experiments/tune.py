"""Grid searches on validation data, with one budget for every method.

The test data are not merely left unread: trials are run in a world where every client's validation
examples stand in the place of its test examples, so that no trial can see any other.
"""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from pathlib import Path
from statistics import fmean

from pfedseq.config import Config, dump_config
from pfedseq.errors import InputError
from pfedseq.files import write_atomically
from pfedseq.measures import find_measure
from pfedseq.methods import find_method
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.run import Listener, Tell
from pfedseq.runs.sweep import Entry, single, sweep
from pfedseq.runs.world import World

Values = Mapping[str, float]
"""What a trial sets, by option of its method."""


@dataclass(frozen=True)
class Trial:
    """One choice of values for one method."""

    method: str
    values: Values
    score: float | None = None
    """Mean validation headline over clients with the models they keep, over seeds; None: failed."""

    @property
    def label(self) -> str:
        """Name of the trial's folder, such as `ditto/proximal_weight=0.1`."""
        return f"{self.method}/{','.join(f'{k}={v:g}' for k, v in self.values.items())}"


def trials(method: str, budget: int) -> list[Trial]:
    """At most `budget` points of a method's grid: all of it, or a fixed random part."""
    grid = find_method(method).grid
    points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    if len(points) > budget:
        kept = sorted(random.Random(f"tune {method}").sample(range(len(points)), budget))
        points = [points[number] for number in kept]
    return [Trial(method, point) for point in points]


def at_edges(trial: Trial) -> list[str]:
    """Options whose value is the smallest or largest of the grid: the best may lie beyond it."""
    grid = find_method(trial.method).grid
    return [
        option
        for option, value in trial.values.items()
        if len(grid[option]) > 1 and value in (min(grid[option]), max(grid[option]))
    ]


def without_test(config: Config) -> World:
    """The world of a trial: where a client's test examples were, its validation examples are."""
    world = World.build(config)
    clients = tuple(replace(client, test=client.validation) for client in world.data.clients)
    if not any(len(client.validation) for client in clients):
        raise InputError(
            "no client holds validation examples to tune on: set data.validation_fraction"
        )
    sites = tuple(replace(site, data=data) for site, data in zip(world.sites, clients, strict=True))
    return replace(world, data=replace(world.data, clients=clients), sites=sites)


def tune(
    config: Config,
    methods: Sequence[str],
    seeds: Sequence[int],
    budget: int,
    out: Path,
    announce: Callable[[Entry], Listener | None],
    tell: Tell,
) -> list[Trial]:
    """Run the trials that `out` does not hold yet; returns all, each method's best first."""
    wanted = [trial for method in methods for trial in trials(method, budget)]
    entries = [
        Entry(f"{trial.label}/seed_{seed}", _config_of(config, trial, seed))
        for seed in seeds
        for trial in wanted
    ]
    sweep(
        entries,
        out,
        announce,
        tell=tell,
        failed=lambda entry, problem: tell(f"{entry.label} counts as failed: {problem}"),
        build=without_test,
    )
    headline = find_measure(config.run.headline)
    scored = [replace(trial, score=_score(trial, seeds, out)) for trial in wanted]
    return [
        trial
        for method in methods
        for trial in sorted(
            (t for t in scored if t.method == method),
            key=lambda t: -inf if t.score is None else headline.rank(t.score),
            reverse=True,
        )
    ]


def winners(found: Sequence[Trial]) -> list[Trial]:
    """Each method's best trial, where any came to an end."""
    best: dict[str, Trial] = {}
    for trial in found:
        if trial.score is not None:
            best.setdefault(trial.method, trial)
    return list(best.values())


def winning_config(config: Config, best: Sequence[Trial]) -> Config:
    """The same run with each method's best values."""
    options = dict(config.methods)
    for trial in best:
        options[trial.method] = {**options.get(trial.method, {}), **trial.values}
    methods = tuple(trial.method for trial in best)
    run = config.run.model_copy(update={"methods": methods})
    return config.model_copy(update={"methods": options, "run": run}).resolved()


def write_tuning(config: Config, found: Sequence[Trial], out: Path) -> list[Path]:
    """All trials as CSV, and the winning config."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "values", f"validation_{config.run.headline}"])
    for trial in found:
        values = " ".join(f"{k}={v:g}" for k, v in trial.values.items())
        writer.writerow([trial.method, values, "" if trial.score is None else repr(trial.score)])
    files = [out / "trials.csv", out / "winner.toml"]
    write_atomically(files[0], text.getvalue())
    write_atomically(files[1], dump_config(winning_config(config, winners(found))))
    return files


def _config_of(config: Config, trial: Trial, seed: int) -> Config:
    given = {**config.methods.get(trial.method, {}), **trial.values}
    options = {**config.methods, trial.method: given}
    return single(config.model_copy(update={"methods": options}), trial.method, seed)


def _score(trial: Trial, seeds: Sequence[int], out: Path) -> float | None:
    """Mean over seeds; None where one of them did not come to an end."""
    scores = []
    for seed in seeds:
        folder = RunFolder(out / trial.label / f"seed_{seed}")
        if not folder.summary.exists():
            return None
        mean = folder.read_summary().methods[trial.method].scores.validation_mean
        if mean is None:  # the headline is defined on no client's validation data
            return None
        scores.append(mean)
    return fmean(scores)
