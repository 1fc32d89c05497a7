"""Means, spreads and intervals against hand-worked cases and a simulation."""

import numpy as np
import pytest
from scipy import stats

from pfedseq.experiments.statistics import MeanStd, mean_interval


def test_a_spread_is_the_sample_standard_deviation():
    assert MeanStd.of([1.0, 2.0, 6.0]) == MeanStd(3.0, pytest.approx(7**0.5))
    assert MeanStd.of([0.5]) == MeanStd(0.5, 0.0)


def test_one_seed_gives_students_interval_over_its_clients():
    differences = np.array([[0.01, 0.03, -0.02, 0.05]])
    found = mean_interval(differences)
    low, high = stats.t.interval(0.95, 3, differences.mean(), stats.sem(differences[0]))
    assert (found.mean, found.low, found.high) == pytest.approx((0.0175, low, high))


def test_a_shift_that_a_seed_gives_to_all_clients_counts_once_a_seed():
    """d_si = b_s: clients repeat the seed's number, so there are two independent values, 0 and 2.

    Their mean is 1 ± t(0.975; 1 degree of freedom) · sqrt(2)/sqrt(2) = 1 ± 12.706.
    """
    found = mean_interval([[0.0] * 5, [2.0] * 5])
    assert (found.low, found.high) == pytest.approx((1 - 12.706, 1 + 12.706), abs=1e-3)


def test_clients_that_repeat_over_seeds_count_once_a_client():
    """d_si = a_i with a = (1, 2, 3): 2 ± t(0.975; 2) · 1/sqrt(3), whatever the number of seeds."""
    found = mean_interval([[1.0, 2.0, 3.0]] * 4)
    reach = stats.t.ppf(0.975, 2) / 3**0.5
    assert (found.low, found.high) == pytest.approx((2 - reach, 2 + reach))


def test_two_way_variance_by_hand():
    """Clients (0, 4) and seeds (0, 6) plus a rest of ±1.

    d = [[1, 3], [5, 11]]; mean 5. By client (3, 7): MS 2·8 = 16; by seed (2, 8): MS 2·18 = 36; the
    rest is ±1: MS 4/1 = 4. Variance (16 + 36 − 4)/4 = 12; degrees of freedom
    12² / (4² + 9² + 1²) = 144/98.
    """
    found = mean_interval([[1.0, 3.0], [5.0, 11.0]])
    reach = stats.t.ppf(0.975, 144 / 98) * 12**0.5
    assert (found.low, found.high) == pytest.approx((5 - reach, 5 + reach))


def test_a_single_difference_has_no_interval():
    found = mean_interval([[0.1]])
    assert (found.low, found.high) == (None, None)


def test_equal_differences_are_certain():
    found = mean_interval([[0.25, 0.25], [0.25, 0.25]])
    assert (found.low, found.high) == (0.25, 0.25)


@pytest.mark.parametrize("spread", [(1, 0, 1), (0, 1, 1), (1, 1, 1), (0, 0, 1)])
def test_about_95_of_100_intervals_hold_the_truth(spread):
    """Three seeds and six clients, whatever varies: clients, seeds, both or neither."""
    rng = np.random.default_rng(0)
    clients, seeds, rest = spread
    held = 0
    for _ in range(1500):
        table = (
            0.3
            + clients * rng.standard_normal((1, 6))
            + seeds * rng.standard_normal((3, 1))
            + rest * rng.standard_normal((3, 6))
        )
        found = mean_interval(table)
        held += found.low <= 0.3 <= found.high
    assert 0.92 <= held / 1500 <= 0.995
