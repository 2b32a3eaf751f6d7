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
    counts = _resamples(len(numerators))
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
    counts = _resamples(len(a))
    differences = (counts @ c) / (counts @ d) - (counts @ a) / (counts @ b)
    low, high = np.quantile(differences, [0.025, 0.975])
    return float(low), float(high)


def newcombe(first: tuple[float, float, float], second: tuple[float, float, float]) -> tuple[float, float]:
    """95 % interval of the difference of two proportions, each (value, low, high) by Wilson.

    Newcombe 1998, method 10. It ignores that the items are the same, so it errs on the wide side, and it does
    not collapse where one proportion is 0 and the other 1.
    """
    (p1, low1, high1), (p2, low2, high2) = first, second
    difference = p2 - p1
    return (
        difference - math.hypot(p2 - low2, high1 - p1),
        difference + math.hypot(high2 - p2, p1 - low1),
    )


def _resamples(n: int) -> np.ndarray:
    """(RESAMPLES, n): how often each item stands in each resample."""
    return np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(float)
