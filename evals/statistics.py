"""Intervals of scores: Wilson for proportions, a bootstrap over items for ratios and paired differences."""

import math

import numpy as np

Z95 = 1.959963984540054
RESAMPLES = 2000
SEED = 20260217  # resampling is part of the protocol: the same items give the same interval


def wilson(hits: float, n: int) -> tuple[float, float]:
    """95 % Wilson score interval of the proportion ``hits / n``; (0, 1) when ``n`` is 0.

    ``hits`` may be a sum of scores in [0, 1]: their variance is at most that of a proportion with the same
    mean, so that the interval errs on the wide side. It stays honest at 0 and at 1, where a bootstrap
    collapses.
    """
    if n == 0:
        return 0.0, 1.0
    p, z2 = hits / n, Z95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, min(centre - half, p)), min(1.0, max(centre + half, p))


def bootstrap_ratio(numerators: np.ndarray, denominators: np.ndarray) -> tuple[float, float]:
    """95 % percentile bootstrap interval of ``sum(numerators) / sum(denominators)``, resampling items.

    Items are what was drawn independently (documents, not tokens). Both arrays are (n,) float; one item alone
    says nothing about its spread and gives an infinite interval.
    """
    numerators, denominators = np.asarray(numerators, float), np.asarray(denominators, float)
    if len(numerators) < 2:
        return -math.inf, math.inf
    counts = resamples(len(numerators))
    ratios = (counts @ numerators) / (counts @ denominators)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


def bootstrap_difference(
    first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]
) -> tuple[float, float]:
    """95 % interval of ``ratio(second) - ratio(first)`` where both were measured on the same items, in order.

    Each argument is (numerators, denominators), all of shape (n,). Pairing removes what the items themselves
    differ in, which is most of the spread of a loss over documents.
    """
    (a, b), (c, d) = ((np.asarray(x, float) for x in pair) for pair in (first, second))
    if not len(a) == len(b) == len(c) == len(d):
        raise ValueError(f"paired scores need the same items: {len(a)} and {len(c)} were given")
    if len(a) < 2:
        return -math.inf, math.inf
    counts = resamples(len(a))
    differences = (counts @ c) / (counts @ d) - (counts @ a) / (counts @ b)
    low, high = np.quantile(differences, [0.025, 0.975])
    return float(low), float(high)


def clustered_wilson(means: np.ndarray, samples: int) -> tuple[float, float]:
    """95 % interval of the mean of ``means``, each the mean of one cluster's samples in [0, 1].

    Samples of one task resemble one another, so that ``samples`` of them tell less than as many tasks.
    Wilson's interval with as many items as would spread like the clusters do (Kish's effective sample size,
    as Korn and Graubard 1998 use it), at least the clusters, at most the samples. Clusters that are all alike
    tell nothing of their spread and count as one item each, so that it stays honest at 0 and at 1.
    """
    means = np.asarray(means, float)
    clusters = len(means)
    if clusters < 2:
        return wilson(float(means.sum()), clusters)
    p, spread = float(means.mean()), float(means.var(ddof=1)) / clusters
    effective = p * (1 - p) / spread if spread > 0 else 0.0
    effective = min(max(effective, clusters), samples)
    return wilson(p * effective, effective)


def paired_newcombe(
    first: np.ndarray,
    second: np.ndarray,
    first_bounds: tuple[float, float],
    second_bounds: tuple[float, float],
) -> tuple[float, float]:
    """95 % interval of ``mean(second) - mean(first)`` of values in [0, 1] on the same items, in order.

    Newcombe 1998, method 10 for paired proportions: the bounds of each mean (Wilson's), joined with the
    correlation of the pairs, which is corrected for continuity. Both arrays are (n,). It does not collapse
    where no pair differs.
    """
    a, b = np.asarray(first, float), np.asarray(second, float)
    if a.shape != b.shape:
        raise ValueError(f"paired scores need the same items: {len(a)} and {len(b)} were given")
    p1, p2 = float(a.mean()), float(b.mean())
    (low1, high1), (low2, high2) = first_bounds, second_bounds
    shared = float(((a - p1) * (b - p2)).mean())
    shared = max(0.0, shared - 0.5 / len(a)) if shared > 0 else shared
    spread = math.sqrt(a.var() * b.var())
    phi = shared / spread if spread > 0 else 0.0
    down, up = (p2 - low2, high1 - p1), (high2 - p2, p1 - low1)
    below, above = (math.sqrt(max(0.0, x * x - 2 * phi * x * y + y * y)) for x, y in (down, up))
    return p2 - p1 - below, p2 - p1 + above


def mcnemar(first: np.ndarray, second: np.ndarray) -> float:
    """Two-sided exact p-value that two scores, each 0 or 1 on the same items, differ by chance."""
    a, b = np.asarray(first, float), np.asarray(second, float)
    lost, won = int(((a == 1) & (b == 0)).sum()), int(((a == 0) & (b == 1)).sum())
    tail = sum(math.comb(lost + won, n) for n in range(min(lost, won) + 1))
    return min(1.0, 2 * tail / 2 ** (lost + won))


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Probability that one of ``k`` samples is right, unbiased from ``right`` of ``samples`` (Chen et al.
    2021). Not a number for fewer samples than ``k``: they cannot tell.
    """
    if samples < k:
        return math.nan
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)


def pass_hat_k(samples: int, right: int, k: int) -> float:
    """Probability that all of ``k`` samples are right, unbiased (tau-bench, Yao et al. 2024)."""
    return math.nan if samples < k else math.comb(right, k) / math.comb(samples, k)


def resamples(n: int) -> np.ndarray:
    """(RESAMPLES, n): how often each item stands in each resample."""
    return np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(float)
