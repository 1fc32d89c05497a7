"""Searches on validation data, with one budget of trials and rounds for every method.

The most important option comes first: the local learning rate is varied from the config's value up
and down by factors of four as long as it helps; then the method's own options are searched at the
best rate. A rate at which adapters hardly move is raised sixteenfold. A grid given by the user
replaces all of this.

Trials cannot read the test data: in their world every client's test examples are replaced by its
validation examples.
"""

from __future__ import annotations

import csv
import io
import random
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from pfedseq.config import Config, dump_config, make_config
from pfedseq.errors import InputError
from pfedseq.files import write_atomically
from pfedseq.measures import PERCENT, Measure, find_measure
from pfedseq.methods import find_method
from pfedseq.runs.findings import HARDLY_MOVED
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.run import Listener, Tell
from pfedseq.runs.sweep import SweepEntry, single, sweep
from pfedseq.runs.world import World
from pfedseq.training.config import LocalTraining

Grid = Mapping[str, Sequence[Any]]
"""Values to try, by option: `lr` of every method, `methods.ditto.lr` of one, `adapter.alpha`."""
RATE = "lr"
RATE_STEP = 4.0
"""Factor between two learning rates; smaller in the end, when nothing else is left to try."""
RATE_JUMP = 16.0
"""Factor from a rate at which adapters hardly move; no healthy rate lies in between."""


@dataclass(frozen=True)
class Trial:
    """One choice of values for one method."""

    method: str
    values: Mapping[str, Any]
    """The values: the method's options by name, others as `section.option`."""
    score: float | None = None
    """Mean validation headline over clients with the models they keep, over seeds; None: failed."""
    loss: float = inf
    """The same of the loss, which decides between equal scores."""
    still: bool = False
    """Whether adapters hardly moved."""
    error: float = 0.0
    """Standard error of the score because of the number of validation examples; 0: unknown."""

    @property
    def label(self) -> str:
        """Name of the trial's folder, such as `ditto/proximal_weight=0.1`."""
        return f"{self.method}/{self.shown(',') or 'as_configured'}"

    def shown(self, separator: str = " ") -> str:
        """`lr=0.1 proximal_weight=0.1`."""
        return separator.join(f"{k}={_plain(v)}" for k, v in self.values.items())


def read_grid(given: Sequence[str]) -> dict[str, list[Any]]:
    """`--grid key=v1,v2` as values by option; each value is read as TOML, or else as a string.

    Options of [training] that a method can override are its own; the others stay in [training].
    """
    grid: dict[str, list[Any]] = {}
    for one in given:
        key, _, text = one.partition("=")
        section, _, option = key.strip().partition(".")
        own = section == "training" and option in LocalTraining.model_fields
        name = option if own else key.strip()
        values = [word.strip() for word in text.split(",") if word.strip()]
        if not name or not values or name in grid:
            raise InputError(f"--grid {one!r} must look like training.lr=0.01,0.1, once a key")
        grid[name] = [_value(word) for word in values]
    return grid


def grid_points(method: str, grid: Grid, budget: int) -> list[Trial]:
    """At most `budget` points of a grid: all of it, or a fixed random subset."""
    own = {}
    for key, values in grid.items():
        section, _, rest = key.partition(".")
        if section != "methods":
            own[key] = values
        elif rest.startswith(f"{method}."):
            own[rest.removeprefix(f"{method}.")] = values
    points = [dict(zip(own, values, strict=True)) for values in product(*own.values())]
    if len(points) > budget:
        kept = sorted(random.Random(f"tune {method}").sample(range(len(points)), budget))
        points = [points[number] for number in kept]
    return [Trial(method, point) for point in points]


@dataclass
class Search:
    """Chooses the next trial of one method from the results so far."""

    method: str
    rate: float
    """The local rate that the config has."""
    budget: int
    headline: Measure
    grid: Grid | None = None
    """The user's grid, which replaces the automatic search."""
    done: list[Trial] = field(default_factory=list)

    def wanted(self) -> Iterator[Trial]:
        """The next trial, or None when the budget is spent; `done` has the previous ones."""
        for trial in self._in_order():
            if len(self.done) >= self.budget:
                return
            if trial.values not in [former.values for former in self.done]:
                yield trial

    def _in_order(self) -> Iterator[Trial]:
        if self.grid is not None:
            yield from grid_points(self.method, self.grid, self.budget)
            return
        rate = self.rate
        yield self._at(rate)
        while self.done[-1].still:
            rate *= RATE_JUMP
            yield self._at(rate)
        for factor in (RATE_STEP, 1 / RATE_STEP):
            yield self._at(rate * factor)
        # Further in the direction that helped; some of the budget is for the method's own options.
        own = {k: v for k, v in find_method(self.method).grid.items() if k != RATE}
        while (beyond := self._beyond()) and (not own or len(self.done) < self.budget - 2):
            yield self._at(beyond)
        best = self.best_rate()
        if own:
            for point in grid_points(self.method, own, max(0, self.budget - len(self.done))):
                yield Trial(self.method, {RATE: best, **point.values})
        for part in (1 / 2, -1 / 2, 1 / 4, -1 / 4, 1 / 8, -1 / 8, 1 / 16, -1 / 16):
            found = ranked(self.done, self.headline)[0].values
            yield self._at(self.best_rate() * RATE_STEP**part, found)

    def _at(self, rate: float, others: Mapping[str, Any] | None = None) -> Trial:
        return Trial(self.method, {**(others or {}), RATE: float(f"{rate:.3g}")})

    def _beyond(self) -> float | None:
        """The next rate outwards, where the best so far is the smallest or largest."""
        rates, best = [trial.values[RATE] for trial in self.done], self.best_rate()
        if best == min(rates):
            return best / RATE_STEP
        return best * RATE_STEP if best == max(rates) else None

    def best_rate(self) -> float:
        """The rate of the best trial so far; the smallest where all failed."""
        best = ranked(self.done, self.headline)[0]
        failed = best.score is None
        return float(min(t.values[RATE] for t in self.done) if failed else best.values[RATE])


def ranked(trials: Sequence[Trial], headline: Measure) -> list[Trial]:
    """The best first: by the headline, then by the lower loss; failed ones last."""

    def rank(trial: Trial) -> tuple[float, float]:
        return (-inf if trial.score is None else headline.rank(trial.score), -trial.loss)

    return sorted(trials, key=rank, reverse=True)


def standard_error(score: float, sizes: Sequence[int]) -> float:
    """That of the mean over clients of a share, each measured on `sizes` examples."""
    return sqrt(score * (1 - score) * sum(1 / size for size in sizes)) / len(sizes)


def indistinct(trial: Trial, tried: Sequence[Trial], headline: Measure) -> list[Trial]:
    """Other trials of the method whose score is within the best trial's standard error."""
    return [
        other
        for other in tried
        if other.method == trial.method
        and other.values != trial.values
        and trial.score is not None
        and other.score is not None
        and headline.gain(trial.score, other.score) < trial.error
    ]


def at_edges(trial: Trial, tried: Sequence[Trial]) -> list[str]:
    """Options whose best value is at the edge of the tried range."""
    edges = []
    for option, value in trial.values.items():
        same = [t.values for t in tried if t.method == trial.method]
        values = {one[option] for one in same if option in one}
        if (
            len(values) > 1
            and isinstance(value, int | float)
            and value in (min(values), max(values))
        ):
            edges.append(option)
    return edges


def without_test(config: Config) -> World:
    """The world of a trial, with validation examples in place of test examples."""
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
    announce: Callable[[SweepEntry], Listener | None],
    tell: Tell,
    grid: Grid | None = None,
    searched: Callable[[str, Sequence[Trial]], None] = lambda method, trials: None,
) -> list[Trial]:
    """Run the missing trials of `out`; return all, each method's best first.

    `searched` receives each method's trials, the best first, when its search ends.
    """
    headline = find_measure(config.run.headline)
    found: list[Trial] = []
    build = _one_world()
    for method in methods:
        rate = config.method_config(method).lr
        search = Search(method, rate, budget, headline, grid)
        for trial in search.wanted():
            entries = [
                SweepEntry(
                    f"{trial.label}/seed_{seed}", single(with_values(config, trial), method, seed)
                )
                for seed in seeds
            ]
            sweep(
                entries,
                out,
                announce,
                tell=tell,
                failed=lambda entry, problem: tell(f"{entry.label} counts as failed: {problem}"),
                build=build,
            )
            search.done.append(_scored(trial, seeds, out))
        found += ranked(search.done, headline)
        searched(method, ranked(search.done, headline))
    return found


def _one_world() -> Callable[[Config], World]:
    """`without_test` that reuses the last world if the config allows it."""
    worlds: list[World] = []

    def build(config: Config) -> World:
        if not worlds or not worlds[0].serves(config):
            worlds[:] = [without_test(config)]
        return worlds[0]

    return build


def with_values(config: Config, trial: Trial) -> Config:
    """The same run with a trial's values."""
    values = config.model_dump(exclude_none=True)
    for key, value in trial.values.items():
        *sections, option = key.split(".")
        table = values
        for section in sections or ("methods", trial.method):
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                raise InputError(f"--grid {key}: {section!r} is not a section")
        table[option] = value
    return make_config(values)


def winners(found: Sequence[Trial]) -> list[Trial]:
    """Each method's best trial, if any succeeded."""
    best: dict[str, Trial] = {}
    for trial in found:
        if trial.score is not None:
            best.setdefault(trial.method, trial)
    return list(best.values())


def winning_config(config: Config, best: Sequence[Trial]) -> Config:
    """The same run with each method's best values."""
    for trial in best:
        config = with_values(config, trial)
    run = config.run.model_copy(update={"methods": tuple(trial.method for trial in best)})
    return config.model_copy(update={"run": run}).resolved()


def write_tuning(config: Config, found: Sequence[Trial], out: Path) -> list[Path]:
    """All trials as CSV, and ready configs: `best-METHOD.toml`, and `winner.toml` with all methods.

    If methods need different values of a shared option, such as `adapter.alpha`, there is no config
    for all of them.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "values", f"validation_{config.run.headline}", "validation_loss"])
    for trial in found:
        scores = ["", ""] if trial.score is None else [repr(trial.score), repr(trial.loss)]
        writer.writerow([trial.method, trial.shown(), *scores])
    files = [out / "trials.csv"]
    write_atomically(files[0], text.getvalue())
    best = winners(found)
    wanted = {f"best-{trial.method}.toml": [trial] for trial in best}
    shared = [{k: v for k, v in trial.values.items() if "." in k} for trial in best]
    if best and all(values == shared[0] for values in shared):
        wanted["winner.toml"] = best
    for name, trials in wanted.items():
        write_atomically(out / name, dump_config(winning_config(config, trials)))
        files.append(out / name)
    return files


def _scored(trial: Trial, seeds: Sequence[int], out: Path) -> Trial:
    """The trial with its means over seeds; it has failed if any seed failed."""
    scores, losses, still = [], [], []
    sizes: list[int] = []
    for seed in seeds:
        folder = RunFolder(out / trial.label / f"seed_{seed}")
        if not folder.summary.exists():
            return trial
        summary = folder.read_summary()
        still.append(any(finding.code == HARDLY_MOVED for finding in summary.findings))
        kept = summary.methods[trial.method].scores
        loss = kept.over_clients("loss", "validation")
        if kept.validation_mean is None:  # the headline is undefined on all validation data
            return trial
        scores.append(kept.validation_mean)
        losses.append(inf if loss is None else loss.client_mean)
        sizes += [size for size in kept.validation_examples if size]
    score = fmean(scores)
    error = standard_error(score, sizes) if kept.measure.format is PERCENT else 0.0
    return replace(trial, score=score, loss=fmean(losses), still=all(still), error=error)


def _value(word: str) -> Any:
    try:
        return tomllib.loads(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        return word


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).replace("/", "_")
