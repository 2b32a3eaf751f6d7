import itertools
import math

import numpy as np
import pytest

from evals.statistics import (
    bootstrap_difference,
    bootstrap_ratio,
    clustered_wilson,
    mcnemar,
    paired_newcombe,
    pass_at_k,
    pass_hat_k,
    wilson,
)


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


def of_pairs(both: int, first: int, second: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    """Right or wrong of two on the same items, from how many of each kind there are."""
    a = np.array([1.0] * (both + first) + [0.0] * (second + neither))
    b = np.array([1.0] * both + [0.0] * first + [1.0] * second + [0.0] * neither)
    return a, b


def compare(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    return paired_newcombe(a, b, wilson(a.sum(), len(a)), wilson(b.sum(), len(b)))


def test_paired_newcombe_equals_a_published_interval_and_mirrors():
    # Newcombe 1998 (paired proportions), method 10, for 36, 12, 2 and 0 pairs.
    a, b = of_pairs(36, 12, 2, 0)
    assert compare(b, a) == pytest.approx((0.0569, 0.3404), abs=5e-5)
    assert compare(a, b) == pytest.approx((-0.3404, -0.0569), abs=5e-5)
    low, high = compare(*of_pairs(30, 0, 0, 0))  # no pair differs, and yet something is not known
    assert low == pytest.approx(-high) and 0.05 < high < 0.2
    with pytest.raises(ValueError, match="same items: 3 and 4"):
        paired_newcombe(np.ones(3), np.ones(4), (0.4, 1), (0.5, 1))


def test_paired_newcombe_covers_and_is_narrower_than_without_pairs():
    rng = np.random.default_rng(8)
    inside, widths, alone = 0, [], []
    for _ in range(1000):
        shared = rng.random(60)
        own = np.where(rng.random(60) < 0.8, shared, rng.random(60))
        a, b = (shared < 0.5).astype(float), (own < 0.65).astype(float)
        low, high = compare(a, b)
        inside += low <= 0.15 <= high
        widths.append(high - low)
        alone.append(np.hypot(*(np.diff(wilson(x.sum(), 60))[0] for x in (a, b))))
    assert 0.93 < inside / 1000 < 0.985
    assert np.mean(widths) < 0.75 * np.mean(alone)


def test_mcnemar_is_exact():
    assert mcnemar(*of_pairs(5, 9, 1, 7)) == pytest.approx(2 * 11 / 1024)
    assert mcnemar(*of_pairs(5, 1, 9, 7)) == pytest.approx(2 * 11 / 1024)
    assert mcnemar(*of_pairs(5, 0, 0, 7)) == mcnemar(*of_pairs(0, 3, 3, 0)) == 1.0


@pytest.mark.parametrize(("tasks", "samples", "spread"), [(12, 3, 0.3), (12, 3, 5.0), (40, 4, 1.0)])
def test_clustered_intervals_cover_however_alike_the_samples_of_a_task_are(tasks, samples, spread):
    rng = np.random.default_rng(tasks)
    inside, widths = 0, []
    for _ in range(1000):
        means = rng.binomial(samples, rng.beta(spread, spread, tasks)) / samples
        low, high = clustered_wilson(means, tasks * samples)
        inside += low <= 0.5 <= high
        widths.append(high - low)
    assert 0.925 < inside / 1000 < 0.975
    naive, cautious = (np.diff(wilson(n / 2, n))[0] for n in (tasks * samples, tasks))
    assert naive < np.mean(widths) < cautious


def test_clustered_intervals_at_the_borders_count_tasks():
    assert clustered_wilson(np.ones(12), 36) == pytest.approx(wilson(12, 12))
    assert clustered_wilson(np.zeros(12), 36) == pytest.approx(wilson(0, 12))
    assert clustered_wilson(np.array([1.0, 0.0, 1.0]), 3) == pytest.approx(wilson(2, 3))
    assert clustered_wilson(np.array([]), 0) == (0.0, 1.0)


def test_pass_at_k_is_the_share_of_all_draws():
    samples, right = 6, 2
    for k in range(1, samples + 1):
        draws = list(itertools.combinations([True] * right + [False] * (samples - right), k))
        assert pass_at_k(samples, right, k) == pytest.approx(np.mean([any(draw) for draw in draws]))
        assert pass_hat_k(samples, right, k) == pytest.approx(np.mean([all(draw) for draw in draws]))
    assert math.isnan(pass_at_k(3, 1, 4)) and math.isnan(pass_hat_k(3, 3, 4))
    # Product form of the definition: 1 - prod (1 - k / i) over the last ``right`` of ``samples``.
    product = np.prod([1 - 5 / i for i in range(100 - 7 + 1, 101)])
    assert pass_at_k(100, 7, 5) == pytest.approx(1 - product)
