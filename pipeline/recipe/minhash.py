"""Can sketches be indexed with these settings? Asked when a recipe is loaded, without datasketch.

datasketch's index cuts a sketch into b bands of r values, b x r at most all of them. Two documents of
similarity s meet in some band with probability ``1 - (1 - s^r)^b``. It takes the b and r with the least sum
of false positives (the integral of that below the threshold) and false negatives (of the rest above it), and
refuses to work with a single band.
"""


def has_two_bands(threshold: float, permutations: int) -> bool:
    """Whether two bands are better than one. Where they are not, no greater number is."""
    one = min(_error(threshold, 1, rows) for rows in range(1, permutations + 1))
    return min(_error(threshold, 2, rows) for rows in range(1, permutations // 2 + 1)) < one


def _error(threshold: float, bands: int, rows: int) -> float:
    """False positives and false negatives, the integrals in closed form for one or two bands."""

    def met(upper: float) -> float:
        """The integral from 0 of the probability to meet: of s^r, or of 2 s^r - s^2r."""
        single = upper ** (rows + 1) / (rows + 1)
        return single if bands == 1 else 2 * single - upper ** (2 * rows + 1) / (2 * rows + 1)

    return met(threshold) + (1 - threshold) - (met(1.0) - met(threshold))
