"""Learning-rate schedules over the rounds of a run, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from pfedseq.errors import InputError

if TYPE_CHECKING:
    from pfedseq.training.config import LocalTraining


def constant(config: LocalTraining, k: int) -> float:
    """Always 1."""
    return 1.0


def cosine(config: LocalTraining, k: int) -> float:
    """Half a wave from 1 down to the floor."""
    return _above_floor(config, (1 + math.cos(math.pi * _progress(config, k))) / 2)


def linear(config: LocalTraining, k: int) -> float:
    """A straight line from 1 down to the floor."""
    return _above_floor(config, 1 - _progress(config, k))


def step(config: LocalTraining, k: int) -> float:
    """Drops by a factor at fixed intervals."""
    return float(config.schedule_factor ** (k // config.schedule_every))


SCHEDULES: dict[str, Callable[[LocalTraining, int], float]] = {
    "constant": constant,
    "cosine": cosine,
    "linear": linear,
    "step": step,
}
"""By name, a function of k, the number of rounds finished since the warm-up."""


def rate_factor(config: LocalTraining, t: int) -> float:
    """Factor of the rates in round t (from 1).

    t / (W + 1) in the W rounds of warm-up, then given by the schedule.
    """
    warmup = config.schedule_warmup
    if t <= warmup:
        return t / (warmup + 1)
    return SCHEDULES[config.schedule](config, t - warmup - 1)


def _progress(config: LocalTraining, k: int) -> float:
    """From 0 in the first round after the warm-up to 1 after the last one of the schedule."""
    if config.schedule_rounds is None:
        raise InputError(f"schedule = {config.schedule!r} needs schedule_rounds")
    return min(1.0, k / (config.schedule_rounds - config.schedule_warmup))


def _above_floor(config: LocalTraining, height: float) -> float:
    return config.schedule_floor + (1 - config.schedule_floor) * height
