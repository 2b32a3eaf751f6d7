"""How many tokens each source gives to a mix, and in which order its documents come."""

from collections.abc import Iterator

import numpy as np

from pipeline.errors import UserError


def quotas(mix: dict[str, float], tokens: int, available: set[str]) -> dict[str, int]:
    """Tokens by source: shares of ``tokens`` after scaling the weights of ``mix`` to one.

    Raises ``UserError`` for a source without documents.
    """
    missing = sorted(set(mix) - available)
    if missing:
        raise UserError(
            f"the mix names {', '.join(missing)}, of which no document is left "
            f"(there are: {', '.join(sorted(available))}): correct the recipe's mix"
        )
    total = sum(mix.values())
    if total <= 0:
        raise UserError("the weights of a mix must not all be zero: correct the recipe's mix")
    return {source: round(tokens * weight / total) for source, weight in sorted(mix.items())}


def passes(count: int, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """(epoch, index) over ``count`` documents without end, each epoch in another order."""
    epoch = 0
    while True:
        for index in rng.permutation(count):
            yield epoch, int(index)
        epoch += 1
