"""Tables in which every method uses options tuned on validation data.

The trials of a scenario are in OUT/tune/SCENARIO, and each method's list of them, the best first,
in OUT/tune/SCENARIO/METHOD.json. A row of a table uses its method's best values in
addition to its own options, so an ablation uses those of the full method.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from pfedseq.config import Config, make_config
from pfedseq.errors import InputError
from pfedseq.experiments.tune import Trial, tune, winners, with_values
from pfedseq.files import write_atomically
from pfedseq.runs.run import Listener, Tell
from pfedseq.runs.sweep import SweepEntry


@dataclass(frozen=True)
class Tuning:
    """The tuning budget of every method."""

    trials: int
    """Trials of each method in each scenario."""
    seeds: tuple[int, ...]
    """Seeds of the trials; they must differ from those of the table."""
    rounds: int | None = None
    """Rounds of a trial; None: as many as the table's runs."""

    def check(self, seeds: Sequence[int]) -> None:
        """Refuse to choose options with the seeds whose results are shown."""
        if not self.seeds:
            raise InputError("--trial-seeds must name at least one seed, e.g. 100")
        if both := sorted(set(self.seeds) & set(seeds)):
            raise InputError(
                f"seed {both[0]} is in --seeds and in --trial-seeds: options must be chosen with "
                "other seeds than those whose results are shown"
            )

    @property
    def overrides(self) -> tuple[str, ...]:
        """Overrides of a trial's config, in the form of --set."""
        return () if self.rounds is None else (f"run.rounds={self.rounds}",)


@dataclass(frozen=True)
class Chosen:
    """The results of the searches of one scenario, by method."""

    folder: Path

    def search(
        self,
        config: Config,
        methods: Sequence[str],
        tuning: Tuning,
        announce: Callable[[SweepEntry], Listener | None],
        tell: Tell,
    ) -> None:
        """Run the trials that are missing; `config` is a trial's, but for what the search sets."""

        def searched(method: str, trials: Sequence[Trial]) -> None:
            self._write(method, trials)
            if not winners(trials):
                tell(f"no trial of {method} succeeded: it keeps the config's own options")

        def announced(entry: SweepEntry) -> Listener | None:
            """The folder of the trials, next to OUT/runs."""
            place = f"../tune/{self.folder.name}/{entry.label}"
            return announce(replace(entry, label=place))

        tune(
            config,
            methods,
            tuning.seeds,
            tuning.trials,
            self.folder,
            announced,
            tell,
            searched=searched,
        )

    def trials(self, method: str) -> list[Trial]:
        """All trials of a method, the best first; empty before its search has ended."""
        path = self._file(method)
        if not path.exists():
            return []
        try:
            lines = json.loads(path.read_text(encoding="utf-8"))
            return [read_trial(method, line) for line in lines]
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise InputError(
                f"{path} is not readable ({problem!r}): delete it, and the same command with "
                "--trials writes it again"
            ) from None

    def best(self, method: str) -> Trial:
        """The best trial; the unchanged config if no search has ended."""
        return next(iter(winners(self.trials(method))), Trial(method, {}))

    def applied(self, config: Config, method: str, overrides: Sequence[str] = ()) -> Config:
        """The config with the values of the method's best trial; `overrides` take precedence."""
        values = with_values(config, self.best(method)).model_dump(exclude_none=True)
        return make_config(values, overrides)

    def _write(self, method: str, trials: Sequence[Trial]) -> None:
        lines = [json.dumps(trial_values(trial)) for trial in trials]
        write_atomically(self._file(method), "[\n" + ",\n".join(lines) + "\n]\n")

    def _file(self, method: str) -> Path:
        return self.folder / f"{method}.json"


def trial_values(trial: Trial) -> dict[str, Any]:
    """A trial as JSON; what is not known is null."""
    loss = trial.loss if isfinite(trial.loss) else None
    return {"values": dict(trial.values), "score": trial.score, "loss": loss}


def read_trial(method: str, line: dict[str, Any]) -> Trial:
    """What `trial_values` gave; raises KeyError where something is missing."""
    loss = line["loss"]
    return Trial(
        method, line["values"], line["score"], float("inf") if loss is None else float(loss)
    )
