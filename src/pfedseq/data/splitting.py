"""Stratified splits: every class on both sides, and groups kept on one side.

A *unit* is never divided: it is the examples of one group (a patient, a subject), the copies of
one example or, most often, a single example. Its *stratum* is the rarest of its classes. Test units
are drawn stratum by stratum, then validation units out of the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pfedseq.data.dataset import ClientData

Indices = NDArray[np.int64]


def split_stratified(
    name: str,
    members: Indices,
    labels: Indices,
    rng: np.random.RandomState,
    *,
    train_fraction: float,
    validation_fraction: float,
    units: Indices | None = None,
) -> ClientData:
    """One client's splits; `units` (as long as `members`) numbers the units that stay together.

    n − ⌊train_fraction · n⌋ examples are for testing, spread over the classes in proportion, and
    at least one unit of every stratum that has two. `validation_fraction` of the rest is for
    validation. A class with one example is trained on, unless nothing else could be held out.
    """
    pool = _Pool.of(members, labels, units)
    num_test = len(members) - int(np.floor(train_fraction * len(members)))
    stay = 2 if validation_fraction > 0 else 1
    test, rest = pool.hold_out(num_test, at_least=1, stay=stay, rng=rng)
    return hold_out_validation(name, rest, test.members, rng, validation_fraction)


def hold_out_validation(
    name: str, pool: "_Pool", test: Indices, rng: np.random.RandomState, fraction: float
) -> ClientData:
    """Draw a client's validation examples, at least one unless the fraction is zero."""
    target = max(1, round(fraction * len(pool.members))) if fraction > 0 else 0
    validation, train = pool.hold_out(target, at_least=0, stay=1, rng=rng)
    return ClientData(
        name,
        train=np.sort(train.members),
        validation=np.sort(validation.members),
        test=np.sort(test),
    )


def validation_of_training(
    name: str,
    train: Indices,
    test: Indices,
    labels: Indices,
    rng: np.random.RandomState,
    *,
    validation_fraction: float,
    units: Indices | None = None,
) -> ClientData:
    """The source's own test examples, and validation examples drawn from its training examples."""
    pool = _Pool.of(train, labels, units)
    return hold_out_validation(name, pool, test, rng, validation_fraction)


@dataclass(frozen=True)
class _Pool:
    """Examples (by index), their units and the units' strata."""

    members: Indices
    unit_of: Indices
    """(n,) unit of each member, 0 … u − 1."""
    strata: Indices
    """(u,) class that each unit is drawn for."""

    @classmethod
    def of(cls, members: Indices, labels: Indices, units: Indices | None) -> "_Pool":
        own = labels[members]
        if units is None:
            return cls(members, np.arange(len(members)), own)
        _, unit_of = np.unique(units, return_inverse=True)
        num_units = int(unit_of.max(initial=-1)) + 1
        holders = {int(label): len(np.unique(unit_of[own == label])) for label in np.unique(own)}
        by_rarity = sorted(holders, key=lambda label: (-holders[label], label))
        strata = np.zeros(num_units, dtype=np.int64)
        for label in by_rarity:  # the rarest class is assigned last
            strata[unit_of[own == label]] = label
        return cls(members, unit_of.astype(np.int64), strata)

    def hold_out(
        self, target: int, *, at_least: int, stay: int, rng: np.random.RandomState
    ) -> tuple["_Pool", "_Pool"]:
        """(held out, rest): about `target` examples, spread over the strata in proportion.

        From a stratum with several units at least `at_least` examples are held out, and `stay`
        units remain, or one if there are only two.
        """
        sizes = np.bincount(self.unit_of, minlength=len(self.strata))
        strata = [rng.permutation(np.flatnonzero(self.strata == s)) for s in np.unique(self.strata)]
        held = np.zeros(len(self.strata), dtype=bool)
        if target > 0:
            quotas = _quotas(strata, sizes, target, at_least, rng)
            for units, quota in zip(strata, quotas, strict=True):
                held[_nearest(units, sizes, quota, stay)] = True
            if not held.any():  # every class has one unit
                alone = rng.permutation(len(self.strata))
                held[_nearest(alone, sizes, target, stay)] = True
        return self._part(held), self._part(~held)

    def _part(self, kept: NDArray[np.bool_]) -> "_Pool":
        inside = kept[self.unit_of]
        numbers = np.cumsum(kept) - 1
        return _Pool(self.members[inside], numbers[self.unit_of[inside]], self.strata[kept])


def _quotas(
    strata: Sequence[Indices],
    sizes: Indices,
    target: int,
    at_least: int,
    rng: np.random.RandomState,
) -> list[int]:
    """How many examples to hold out of each stratum, by largest remainders; one unit remains."""
    totals = np.array([sizes[units].sum() for units in strata])
    most = np.array([s - 1 if len(u) > 1 else 0 for s, u in zip(totals, strata, strict=True)])
    shares = target * totals / max(1, totals.sum())
    most = np.minimum(most, np.maximum(np.ceil(shares).astype(np.int64), at_least))
    quotas = np.minimum(np.maximum(np.floor(shares).astype(np.int64), at_least), most)
    order = rng.permutation(len(strata))
    while quotas.sum() < target and (quotas < most).any():
        lacking = [s for s in order if quotas[s] < most[s]]
        quotas[max(lacking, key=lambda s: shares[s] - quotas[s])] += 1
    return [int(quota) for quota in quotas]


def _nearest(units: Indices, sizes: Indices, quota: int, stay: int) -> list[int]:
    """Take units in order if they bring the sum closer to `quota`; at least one."""
    most = max(1, len(units) - stay) if len(units) > 1 and quota > 0 else 0
    taken: list[int] = []
    total = 0
    for unit in units.tolist():
        if len(taken) < most and abs(total + sizes[unit] - quota) <= abs(total - quota):
            taken.append(unit)
            total += int(sizes[unit])
    if most and not taken:
        taken = [min(units.tolist(), key=lambda unit: sizes[unit])]
    return taken


def join_units(*partitions: Indices) -> Indices:
    """The finest units (n,) that respect several groupings of the same examples."""
    parent = list(range(len(partitions[0])))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for numbers in partitions:
        first: dict[int, int] = {}
        for i, number in enumerate(numbers.tolist()):
            parent[root(i)] = root(first.setdefault(number, i))
    return np.array([root(i) for i in range(len(parent))], dtype=np.int64)
