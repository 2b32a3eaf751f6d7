import random

import numpy as np

from pipeline.packing import best_fit, lay_out, split


def _plain_best_fit(sizes: list[int], length: int) -> list[int]:
    """Free space of each row, by looking at all rows for every piece."""
    free: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [row for row in range(len(free)) if free[row] >= size]
        if fitting:
            free[min(fitting, key=lambda row: free[row])] -= size
        else:
            free.append(length - size)
    return sorted(free)


def test_packing_is_best_fit_and_loses_nothing():
    rng = random.Random("packing")
    for _ in range(50):
        length = rng.randint(8, 64)
        sizes = [rng.randint(1, length) for _ in range(rng.randint(0, 80))]
        rows = best_fit(sizes, length)
        assert sorted(piece for row in rows for piece in row) == list(range(len(sizes)))
        assert sorted(length - sum(sizes[p] for p in row) for row in rows) == _plain_best_fit(sizes, length)


def test_rows_say_where_each_piece_begins():
    pieces = [np.array(p, np.uint16) for p in ([1, 2, 3, 4, 5], [6, 7], [8, 9, 10])]
    rows = best_fit([5, 2, 3], 6)
    tokens, starts = lay_out(pieces, rows, 6, 99)
    assert tokens.tolist() == [[1, 2, 3, 4, 5, 99], [8, 9, 10, 6, 7, 99]]
    assert starts.tolist() == [[0, 0, 0, 0, 0, 5], [0, 0, 0, 3, 3, 5]]
    assert tokens.dtype == np.uint16 and starts.dtype == np.int32


def test_split_keeps_every_token():
    document = np.arange(23)
    parts = split(document, 10)
    assert [len(part) for part in parts] == [10, 10, 3] and (np.concatenate(parts) == document).all()
