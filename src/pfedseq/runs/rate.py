"""A rate without a search: with `training.lr = "auto"` a range test finds it before round 1.

Some of the clients train the initial model alone, each for a few steps on three quarters of its
training data, at one rate after the other; the rate after which their mean loss on the last quarter
is lowest is taken: the loss on what was trained on would prefer rates that overfit. The test
depends on the data, the model, [training] and the seed only, so all methods of a comparison get the
same rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from math import inf, isfinite
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from pfedseq.config import Config, TrainingConfig
from pfedseq.errors import InputError
from pfedseq.federation import Site, Task
from pfedseq.training.optimizer import LocalOptimizer
from pfedseq.words import count

if TYPE_CHECKING:
    from pfedseq.runs.world import World

STEPS = 32
"""Local steps at each rate."""
MOST_CLIENTS = 8
"""Clients that take part, the first ones that have training examples."""
HELD_OUT = 4
"""One in so many training examples of a client is kept aside, and the loss is measured on these."""
MOST_EXAMPLES = 64
"""No more than these are kept aside."""
FACTOR = 2.0
"""Ratio of neighbouring rates."""
MOST_RATES = 12


def with_rate(world: World, config: Config, tell: Callable[[str], None]) -> Config:
    """The config with the rate that a range test finds, if it wants one; the result is told."""
    if not config.wants_rate:
        return config
    key = config.training.model_dump_json()
    if key not in world.rates:
        torch.set_num_threads(config.engine.threads_per_client)  # as in the rounds: equal sums
        sites = [site for site in world.sites if len(site.data.train)][:MOST_CLIENTS]
        if not sites:
            raise InputError(
                "training.lr = 'auto' tests rates on training examples, and no client has any: set "
                "a number"
            )
        tell(f"testing learning rates: {STEPS} steps of {count(len(sites), 'client')} at each")
        training = config.training
        untrained = loss_after(sites, training, steps=0)
        tried = range_test(
            lambda lr: loss_after(sites, training.at_rate(lr)),
            training.lr,
            untrained,
            training.highest_lr,
        )
        world.rates[key] = best = best_rate(tried)
        listed = ", ".join(f"{lr:g}: {loss:.3g}" for lr, loss in sorted(tried.items()))
        tell(
            f"training.lr = auto: {best:g} has the lowest mean loss on training examples kept "
            f"aside, after {STEPS} steps ({listed})"
        )
    return config.at_rate(world.rates[key])


def range_test(
    loss_at: Callable[[float], float], start: float, untrained: float, highest: float = inf
) -> dict[float, float]:
    """Losses by rate: up from `start` to `highest` while they fall, else down while they fall.

    A rate that leaves a loss of at least `untrained` is too high, even if higher ones leave less.
    """
    tried = {start: loss_at(start)}
    while len(tried) < MOST_RATES and best_rate(tried) == (top := max(tried)):
        if tried[top] >= untrained or top * FACTOR > highest:
            break
        tried[top * FACTOR] = loss_at(top * FACTOR)
    while len(tried) < MOST_RATES:
        bottom = min(tried)
        if best_rate(tried) != bottom and tried[bottom] < untrained:
            break
        tried[bottom / FACTOR] = loss_at(bottom / FACTOR)
    return tried


def best_rate(tried: Mapping[float, float]) -> float:
    """The rate with the lowest loss; of equal ones the lowest."""
    return min(tried, key=lambda lr: (tried[lr], lr))


def loss_after(sites: Sequence[Site], training: TrainingConfig, steps: int = STEPS) -> float:
    """Mean loss over clients after each trained the initial model for some steps."""
    constant = training.model_copy(update={"schedule": "constant", "schedule_warmup": 0})
    tasks = [site.task(1, "rate") for site in sites]
    mean = fmean(_loss_after(task, constant, steps) for task in tasks)
    return mean if isfinite(mean) else inf


def _loss_after(task: Task, training: TrainingConfig, steps: int) -> float:
    drawn = list(task.batches(1))
    examples, size = torch.cat(drawn), len(drawn[0])
    held = min(max(1, len(examples) // HELD_OUT), MOST_EXAMPLES)
    rest = examples[held:] if len(examples) > 1 else examples
    phi, optimizer = task.initial, LocalOptimizer(training, units=task.units)
    for batch in islice(cycle(rest.split(size)), steps):
        phi = optimizer.step(phi, task.grad(phi, batch))
    aside = examples[:held].split(size)
    return fmean([task.loss(phi, batch) for batch in aside], [len(batch) for batch in aside])
