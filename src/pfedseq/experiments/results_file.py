"""Results of many runs in one small file, from which tables can be made.

Each line is a JSON object. A run has its data set, row of the table, seed and tuned options, and
the headline and loss of `MethodSummary` by client; a trial has its data set and method, the values
it tried and their validation scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfedseq.errors import InputError
from pfedseq.experiments.tune import Trial
from pfedseq.experiments.tuned import read_trial, trial_values
from pfedseq.files import write_atomically
from pfedseq.runs.records import MethodSummary

DIGITS = 7
"""Decimals that are kept; tables show fewer."""


@dataclass(frozen=True)
class KeptRun:
    """One finished run."""

    data_set: str
    arm: str
    method: str
    seed: int
    options: Mapping[str, Any]
    """The tuned options; empty if the config was used unchanged."""
    summary: MethodSummary

    @property
    def key(self) -> tuple[str, ...]:
        """No two runs of a file have the same."""
        return ("run", self.data_set, self.arm, str(self.seed))

    def to_json(self) -> dict[str, Any]:
        """One object; of the measures, the headline and the loss are kept."""
        values = self.summary.to_json()
        kept = {"examples", self.summary.measure.name, "loss"}
        for split in ("test", "validation"):
            values[split] = {
                name: column if name == "examples" else {"pooled": None, **_clients_of(column)}
                for name, column in values[split].items()
                if name in kept
            }
        about = {"data_set": self.data_set, "arm": self.arm, "method": self.method}
        needed = {name: values[name] for name in _SUMMARY}
        return {**about, "seed": self.seed, "options": dict(self.options), **_rounded(needed)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> KeptRun:
        """What `to_json` gave; raises KeyError where something is missing."""
        return cls(
            values["data_set"],
            values["arm"],
            values["method"],
            values["seed"],
            values["options"],
            MethodSummary.from_json(values),
        )


_SUMMARY = (
    *("rounds", "planned_rounds", "keep", "kept_round", "best_on_validation"),
    *("best_on_test_optimistic", "headline", "clients", "test", "validation"),
    *("bytes_up", "bytes_down", "client_seconds", "server_seconds", "evaluate_seconds"),
)


@dataclass(frozen=True)
class KeptTrial:
    """One trial of a search."""

    data_set: str
    trial: Trial

    @property
    def key(self) -> tuple[str, ...]:
        """No two trials of a file have the same."""
        return ("trial", self.data_set, self.trial.label)

    def to_json(self) -> dict[str, Any]:
        """One object."""
        values = trial_values(self.trial)
        return {"data_set": self.data_set, "trial": self.trial.method, **_rounded(values)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> KeptTrial:
        """What `to_json` gave; raises KeyError where something is missing."""
        return cls(values["data_set"], read_trial(values["trial"], dict(values)))


@dataclass
class ResultsFile:
    """The runs and trials of a file, by key."""

    lines: dict[tuple[str, ...], KeptRun | KeptTrial] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> ResultsFile:
        """The lines of a file."""
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as problem:
            raise InputError(f"cannot read results {path}: {problem.strerror}") from None
        file = cls()
        for number, line in enumerate(text.splitlines(), 1):
            try:
                values = json.loads(line)
                kind = KeptTrial if "trial" in values else KeptRun
                file.add([kind.from_json(values)])
            except (ValueError, KeyError, TypeError, AttributeError) as problem:
                raise InputError(
                    f"{path}, line {number}, is no result that `reproduce --record` wrote "
                    f"({problem!r})"
                ) from None
        return file

    def add(self, lines: Sequence[KeptRun | KeptTrial]) -> None:
        """Add lines; a line with an existing key replaces the former one."""
        self.lines |= {line.key: line for line in lines}

    def runs(self, data_set: str, arm: str) -> dict[int, MethodSummary]:
        """The runs of one line of a table, by seed."""
        return {
            line.seed: line.summary
            for line in self.lines.values()
            if isinstance(line, KeptRun) and (line.data_set, line.arm) == (data_set, arm)
        }

    def options(self, data_set: str, arm: str) -> Mapping[str, Any]:
        """What tuning chose for one line of a table."""
        for line in self.lines.values():
            if isinstance(line, KeptRun) and (line.data_set, line.arm) == (data_set, arm):
                return line.options
        return {}

    def trials(self, data_set: str, method: str) -> list[Trial]:
        """The trials of a method."""
        return [
            line.trial
            for line in self.lines.values()
            if isinstance(line, KeptTrial)
            and (line.data_set, line.trial.method) == (data_set, method)
        ]

    def write(self, path: Path) -> None:
        """All lines, ordered by key."""
        ordered = [self.lines[key] for key in sorted(self.lines)]
        write_atomically(path, "".join(f"{_dumped(line.to_json())}\n" for line in ordered))


def _dumped(values: Mapping[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":"))


def _clients_of(column: Mapping[str, Any]) -> dict[str, Any]:
    return {"clients": column["clients"]}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, Mapping):
        return {key: one if key == "values" else _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value
