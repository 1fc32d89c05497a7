"""Time estimates for experiments on this machine.

A few steps of Local are measured; the time of other methods relative to Local is taken from the
paper's table of seconds per round. So listing all experiments takes seconds rather than hours.
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
    """The cost of a round of Local in a scenario, or why it is unknown."""

    training_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    missing: str | None = None


def measure_paces(
    scenarios: Sequence[Scenario],
    overrides: Sequence[str],
    report: Callable[[str, int, int], None],
) -> dict[str, Pace]:
    """Measure Local in each scenario; report missing data or backbones."""
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
    """The time of an experiment's missing runs; None if a scenario is not available."""
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
    """The paper's time relative to Local, on CIFAR-100 for data sets it does not have.

    A method that is not in the paper counts as Local.
    """
    ours, local = (
        paper.published("time", row, data_set or "cifar100") for row in (method, "local")
    )
    assert local is not None
    return 1.0 if ours is None else ours.mean / local.mean
