"""How long experiments will take here: Local is measured for a moment, the others by the paper.

A method's share of time beyond Local's is taken from the paper's own table of seconds a round, so
that a list of all experiments costs seconds and not hours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pfedseq.errors import InputError
from pfedseq.experiments import paper
from pfedseq.experiments.plan import MethodPlan, plan
from pfedseq.experiments.reproduce import Reproduction
from pfedseq.experiments.settings import Scenario
from pfedseq.runs.world import World


@dataclass(frozen=True)
class Pace:
    """What a round of Local costs in a scenario, or why that cannot be told."""

    training_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    missing: str | None = None


def measure_paces(
    scenarios: Sequence[Scenario],
    overrides: Sequence[str],
    report: Callable[[str, int, int], None],
) -> dict[str, Pace]:
    """Local's pace in each scenario; one whose data or backbone is not at hand says so."""
    paces = {}
    for number, scenario in enumerate(scenarios):
        report("measuring Local", number, len(scenarios))
        try:
            config = scenario.load(overrides)
            (row,) = plan(World.build(config), ["local"], lambda *_: None).methods
        except InputError as problem:
            paces[scenario.name] = Pace(missing=str(problem))
        else:
            paces[scenario.name] = pace_of(row, config.run.rounds)
    report("measuring Local", len(scenarios), len(scenarios))
    return paces


def pace_of(row: MethodPlan, rounds: int) -> Pace:
    """A round's share of a plan."""
    return Pace(row.training_seconds / rounds, row.evaluate_seconds / rounds)


def seconds_left(wanted: Reproduction, paces: dict[str, Pace]) -> float | None:
    """What an experiment's missing runs will take; None where a scenario is not at hand."""
    total = 0.0
    for scenario in wanted.scenarios:
        pace = paces[scenario.name]
        if pace.missing is not None:
            return None
        for entry in wanted.entries():
            if not entry.label.startswith(f"{scenario.name}/"):
                continue
            if entry.folder(wanted.runs).summary.exists():
                continue
            run = entry.config.run
            times = times_local(run.methods[0], scenario.stands_for)
            total += run.rounds * (times * pace.training_seconds + pace.evaluate_seconds)
    return total


def times_local(method: str, data_set: str | None) -> float:
    """How many times Local's seconds the paper measured; on CIFAR-100 for data it does not have.

    A method that it does not have counts as Local.
    """
    ours, local = (
        paper.published("time", row, data_set or "cifar100") for row in (method, "local")
    )
    assert local is not None
    return 1.0 if ours is None else ours.mean / local.mean
