"""Fill-in-the-middle on source code (arXiv 2207.14255; GLM-4.5 section 2.2): prefix, suffix, then the middle.

The two cuts fall anywhere between characters, so that a completion may begin inside a word.
"""

import numpy as np

from data_pipelines.tokens import Encoder

PREFIX, MIDDLE, SUFFIX = "<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>"


def cut(text: str, rng: np.random.Generator) -> tuple[str, str, str]:
    """(prefix, suffix, middle) at two random places; together they are the text."""
    first, second = sorted(int(place) for place in rng.integers(0, len(text) + 1, size=2))
    return text[:first], text[second:], text[first:second]


def join(pieces: list[np.ndarray], encoder: Encoder) -> np.ndarray:
    """Token ids of a document from those of its pieces: one, the whole text, or three, as ``cut`` gives them.

    Ends with ``<|endoftext|>``.
    """
    marks = (PREFIX, SUFFIX, MIDDLE) if len(pieces) == 3 else ()
    parts = []
    for place, piece in enumerate(pieces):
        if marks:
            parts.append([encoder.special(marks[place])])
        parts.append(piece)
    return np.concatenate([*parts, [encoder.end]]).astype(encoder.dtype)
