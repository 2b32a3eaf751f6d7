"""Best-fit packing (arXiv 2404.10830): rows of one length, in which only what is longer than a row was cut.

GLM-4.5 (section 2.3) packs so in mid-training, where a cut document would lose the long-range links it is
there for. Mid-training's documents are packed when the data is made, the chats of fine-tuning when they are
read.
"""

from bisect import bisect_left, insort

import numpy as np


def split(document: np.ndarray, length: int) -> list[np.ndarray]:
    """Pieces of at most ``length`` tokens."""
    return [document[start : start + length] for start in range(0, len(document), length)]


def best_fit(sizes: list[int], length: int) -> list[list[int]]:
    """Rows of piece numbers: the largest piece first, each into the fullest row that has room for it."""
    rows: list[list[int]] = []
    space: list[tuple[int, int]] = []  # (free tokens, row), ascending
    for piece in sorted(range(len(sizes)), key=lambda piece: (-sizes[piece], piece)):
        place = bisect_left(space, (sizes[piece], -1))
        if place == len(space):
            rows.append([])
            free, row = length, len(rows) - 1
        else:
            free, row = space.pop(place)
        rows[row].append(piece)
        if free > sizes[piece]:
            insort(space, (free - sizes[piece], row))
    return rows


def lay_out(
    pieces: list[np.ndarray], rows: list[list[int]], length: int, padding: int
) -> tuple[np.ndarray, np.ndarray]:
    """tokens (N, length) in the pieces' dtype and starts int32 (N, length): where the piece of each
    position begins.

    Free places hold ``padding``, each a piece of its own: no other position sees it and none predicts it.
    """
    dtype = pieces[0].dtype if pieces else np.uint16
    tokens_NL = np.full((len(rows), length), padding, dtype=dtype)
    starts_NL = np.tile(np.arange(length, dtype=np.int32), (len(rows), 1))
    for number, row in enumerate(rows):
        start = 0
        for piece in row:
            stop = start + len(pieces[piece])
            tokens_NL[number, start:stop] = pieces[piece]
            starts_NL[number, start:stop] = start
            start = stop
    return tokens_NL, starts_NL
