"""Several methods over several seeds on the same partitions and initial weights, in one table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pfedseq.config import Config, dump_config
from pfedseq.errors import InputError
from pfedseq.files import write_atomically
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.run import Listener, run_methods
from pfedseq.runs.world import World

Summary = dict[str, Any]


@dataclass(frozen=True)
class MeanStd:
    """A mean over seeds and its standard deviation (0 for one seed)."""

    mean: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float]) -> MeanStd:
        """Sample mean and standard deviation."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else 0.0)


@dataclass(frozen=True)
class ComparisonRow:
    """One method's line of the table."""

    method: str
    client_mean: MeanStd
    worst_client: MeanStd
    sample_weighted: MeanStd
    difference: MeanStd
    """Per client and seed: accuracy minus the first method's on the same client and seed."""
    wins: int
    losses: int
    """Clients (of all seeds) that do better, and worse, than with the first method."""
    seconds_per_round: float
    """Clients' and server's seconds together, evaluation left out."""
    cost_ratio: float | None
    """`seconds_per_round` relative to Local's, where Local takes part."""
    bytes_up_per_round: float
    bytes_down_per_round: float


def compare(
    config: Config,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    announce: Callable[[str, int, Config], Listener | None] = lambda *_: None,
    finished: Callable[[RunFolder], None] = lambda _: None,
) -> list[ComparisonRow]:
    """Run what `out` does not hold yet, one folder METHOD/seed_S each, and tabulate all of it."""
    if not methods or not seeds:
        raise InputError("compare needs at least one method and one seed")
    summaries: dict[str, list[Summary]] = {name: [] for name in methods}
    for seed in seeds:
        world: World | None = None
        for name in methods:
            one = _single(config, name, seed)
            folder = RunFolder(out / name / f"seed_{seed}")
            _check_same(folder, one)
            if not folder.summary.exists():
                if world is None:
                    world = World.build(one)
                listener = announce(name, seed, one)
                RunFolder.create(folder.path, dump_config(one))
                run_methods(replace(world, config=one), folder, listener)
                finished(folder)
            summary = json.loads(folder.summary.read_text(encoding="utf-8"))
            summaries[name].append(summary["methods"][name])
    rows = tabulate(summaries)
    write_atomically(out / "comparison.json", json.dumps(_plain(rows, seeds), indent=2) + "\n")
    return rows


def tabulate(summaries: Mapping[str, Sequence[Summary]]) -> list[ComparisonRow]:
    """The table from each method's summaries, seed by seed in the same order."""
    reference = next(iter(summaries.values()))
    local = summaries.get("local")
    local_cost = _seconds_per_round(local) if local else None
    rows = []
    for name, runs in summaries.items():
        differences = [
            mine - theirs
            for run, other in zip(runs, reference, strict=True)
            for mine, theirs in zip(run["test_accuracy"], other["test_accuracy"], strict=True)
        ]
        cost = _seconds_per_round(runs)
        rows.append(
            ComparisonRow(
                method=name,
                client_mean=MeanStd.of([run["client_mean"] for run in runs]),
                worst_client=MeanStd.of([run["worst_client"] for run in runs]),
                sample_weighted=MeanStd.of([run["sample_weighted"] for run in runs]),
                difference=MeanStd.of(differences),
                wins=sum(d > 0 for d in differences),
                losses=sum(d < 0 for d in differences),
                seconds_per_round=cost,
                cost_ratio=cost / local_cost if local_cost else None,
                bytes_up_per_round=_per_round(runs, "bytes_up"),
                bytes_down_per_round=_per_round(runs, "bytes_down"),
            )
        )
    return rows


def _single(config: Config, method: str, seed: int) -> Config:
    """The same run with one method and one seed."""
    section = config.run.model_copy(update={"methods": (method,), "seed": seed})
    methods = {name: options for name, options in config.methods.items() if name == method}
    return config.model_copy(update={"run": section, "methods": methods}).resolved()


def _check_same(folder: RunFolder, config: Config) -> None:
    """Refuse to put results of different options into one table."""
    if folder.config.exists() and folder.config.read_text(encoding="utf-8") != dump_config(config):
        raise InputError(
            f"{folder.path} was made with other options than this comparison's; "
            "choose another --out, or delete that folder"
        )


def _seconds_per_round(runs: Sequence[Summary]) -> float:
    return _per_round(runs, "client_seconds") + _per_round(runs, "server_seconds")


def _per_round(runs: Sequence[Summary], key: str) -> float:
    total: float = sum(run[key] for run in runs) / sum(run["rounds"] for run in runs)
    return total


def _plain(rows: Sequence[ComparisonRow], seeds: Sequence[int]) -> dict[str, Any]:
    return {
        "seeds": list(seeds),
        "reference": rows[0].method,
        "methods": {
            row.method: {
                key: vars(value) if isinstance(value, MeanStd) else value
                for key, value in vars(row).items()
                if key != "method"
            }
            for row in rows
        },
    }
