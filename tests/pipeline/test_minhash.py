"""Whether sketches can be indexed: said as a recipe is loaded, and the same as datasketch itself finds."""

import pytest

from data_pipelines.duplicates import NearDuplicates
from pipeline.recipe.minhash import has_two_bands


def highest(permutations: int) -> float:
    """The threshold up to which two bands are better than one, to 1e-9."""
    low, high = 0.1, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if has_two_bands(middle, permutations) else (low, middle)
    return low


@pytest.mark.parametrize("permutations", [2, 3, 5, 8, 31, 64, 128])
def test_datasketch_agrees_on_both_sides_of_the_limit(permutations):
    limit = highest(permutations)
    NearDuplicates(permutations, limit - 1e-5)
    NearDuplicates(permutations, limit / 2)
    for threshold in (limit + 1e-5, (1 + limit) / 2):
        with pytest.raises(ValueError, match="number of bands"):
            NearDuplicates(permutations, threshold)


def test_more_permutations_allow_higher_thresholds():
    limits = [highest(number) for number in (2, 4, 8, 16, 64, 256, 4096)]
    assert limits == sorted(limits) and limits[0] == pytest.approx(0.5) and limits[-1] < 1
