"""Means, spreads and confidence intervals over clients and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student_t

LEVEL = 0.95
"""The confidence level of intervals."""


@dataclass(frozen=True)
class MeanStd:
    """A mean and the spread of the values around it: their standard deviation (0 for one value).

    The spread says how far apart single values lie; it is not the error of the mean, for which
    there is `Interval`.
    """

    mean: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float]) -> MeanStd:
        """Sample mean and standard deviation."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else 0.0)


@dataclass(frozen=True)
class Interval:
    """A mean and where, with 95 % confidence, the true one lies; no bounds for a single value."""

    mean: float
    low: float | None
    high: float | None


def mean_interval(values: ArrayLike) -> Interval:
    """The mean over seeds × clients (S, N) of paired differences, and its confidence interval.

    Clients differ, and a seed shifts all of them together, so S · N differences are not S · N
    independent ones. With d_si = μ + a_i + b_s + e_si (clients, seeds and the rest random), the
    mean's variance is σ_a²/N + σ_b²/S + σ_e²/(SN). The three come from the mean squares of a
    two-way analysis of variance, a negative one counting as zero, and the interval is Student's
    with Satterthwaite's degrees of freedom. With one seed, the clients alone make the interval,
    and what another seed would change stays unknown.
    """
    table = np.asarray(values, dtype=float)
    seeds, clients = table.shape
    mean = float(table.mean())
    if table.size == 1:
        return Interval(mean, None, None)
    if 1 in (seeds, clients):
        parts = [(float(table.var(ddof=1)), table.size - 1, 1.0)]
    else:
        by_client, by_seed = table.mean(0), table.mean(1)
        rest = table - by_client - by_seed[:, None] + mean
        of_clients = (seeds * float(by_client.var(ddof=1)), clients - 1)
        of_seeds = (clients * float(by_seed.var(ddof=1)), seeds - 1)
        freedom_of_rest = (seeds - 1) * (clients - 1)
        of_rest = (float((rest**2).sum()) / freedom_of_rest, freedom_of_rest)
        larger = [part for part in (of_clients, of_seeds) if part[0] > of_rest[0]]
        # The larger ones include σ_e², which must count once.
        parts = [(square, freedom, 1.0) for square, freedom in larger]
        if not larger:
            parts = [(*of_rest, 1.0)]
        elif len(larger) == 2:
            parts.append((*of_rest, -1.0))
    variance = sum(sign * square for square, _, sign in parts) / table.size
    if variance <= 0:
        return Interval(mean, mean, mean)
    freedom = variance**2 / sum((square / table.size) ** 2 / free for square, free, _ in parts)
    reach = float(student_t.ppf((1 + LEVEL) / 2, freedom)) * variance**0.5
    return Interval(mean, mean - reach, mean + reach)


def paired_interval(mine: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Interval:
    """Mine minus theirs on the same clients of the same seeds, each given as seeds × clients."""
    return mean_interval(np.asarray(mine, dtype=float) - np.asarray(theirs, dtype=float))
