import math

import numpy as np
import pytest

from evals.statistics import bootstrap_difference, bootstrap_ratio, newcombe, wilson


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    # Newcombe 1998, table I (method 3, the score interval).
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_equals_published_intervals(hits, n, low, high):
    assert wilson(hits, n) == pytest.approx((low, high), abs=5e-5)


def test_wilson_at_the_borders():
    low, high = wilson(20, 20)
    assert high == 1.0 and low == pytest.approx(1 - 0.1611, abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def test_wilson_covers_fractional_scores():
    rng = np.random.default_rng(5)
    values = rng.beta(0.6, 0.4, size=(2000, 60))
    inside = 0
    for row in values:
        low, high = wilson(row.sum(), len(row))
        inside += low <= 0.6 <= high
    assert inside / len(values) > 0.95


def test_bootstrap_covers_a_ratio_of_heavy_documents():
    rng = np.random.default_rng(5)
    trials, n, rate = 300, 40, 1.7
    inside = 0
    for _ in range(trials):
        sizes = rng.lognormal(6, 0.5, n)
        bits = sizes * (rate + rng.normal(0, 0.3, n))
        low, high = bootstrap_ratio(bits, sizes)
        inside += low <= rate <= high
    # Nominal 95 %; the percentile form loses a little at n = 40. Three standard errors below and above.
    assert 0.88 < inside / trials <= 0.995


def test_bootstrap_of_one_item_says_that_it_knows_nothing():
    assert bootstrap_ratio(np.array([3.0]), np.array([2.0])) == (-math.inf, math.inf)


def test_pairing_removes_what_the_documents_differ_in():
    rng = np.random.default_rng(5)
    sizes = np.full(50, 100.0)
    first = sizes * rng.normal(2.0, 0.5, 50)
    second = first - sizes * rng.normal(0.05, 0.01, 50)
    low, high = bootstrap_difference((first, sizes), (second, sizes))
    assert low < -0.05 < high < 0
    assert high - low < 0.02
    unpaired = bootstrap_ratio(first, sizes)
    assert unpaired[1] - unpaired[0] > 5 * (high - low)


def test_paired_scores_need_the_same_items():
    three, four = (np.ones(3), np.ones(3)), (np.ones(4), np.ones(4))
    with pytest.raises(ValueError, match="same items: 3 and 4"):
        bootstrap_difference(three, four)


def test_newcombe_equals_published_intervals():
    # Newcombe 1998, table II, method 10: 56/70 - 48/80 and 9/10 - 3/10.
    for (a, m), (b, n), wanted in [
        ((48, 80), (56, 70), (0.0524, 0.3339)),
        ((3, 10), (9, 10), (0.1705, 0.8090)),
    ]:
        first, second = (a / m, *wilson(a, m)), (b / n, *wilson(b, n))
        assert newcombe(first, second) == pytest.approx(wanted, abs=5e-5)
