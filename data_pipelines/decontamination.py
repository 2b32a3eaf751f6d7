"""Which documents hold what evaluation asks for.

Two rules, on runs of 13 words. A task of an environment is lost once it was read, so a document that shares
a single run with one is dropped. Held-out documents are scored by their bits per byte, where a quoted
sentence does little: a document is dropped when more than ``SHARE`` of its runs occur in them. Runs that
stand in ``BOILERPLATE`` or more documents of the collection, such as licence headers, identify nothing and
are not counted there.
"""

from dataclasses import dataclass

import numpy as np

from data_pipelines.ngrams import NGRAM, contained, ngram_hashes

SHARE = 0.1
BOILERPLATE = 8


@dataclass(frozen=True)
class Overlap:
    """What one document shares with the evaluation sets."""

    runs: int  # different runs of 13 words in it
    items: int  # of those, in the tasks
    heldout: np.ndarray  # int32: of those, in held-out documents, as places in the index


class Index:
    """The sorted 13-gram hashes of held-out documents and of tasks."""

    def __init__(self, everything: np.ndarray, items: np.ndarray):
        self.items = items
        self.heldout = np.setdiff1d(everything, items, assume_unique=True)

    def overlap(self, words: np.ndarray) -> Overlap:
        runs = np.unique(ngram_hashes(words, NGRAM))
        in_heldout = runs[contained(runs, self.heldout)]
        places = np.searchsorted(self.heldout, in_heldout).astype(np.int32)
        return Overlap(len(runs), int(contained(runs, self.items).sum()), places)


def rare_places(overlaps: list[Overlap], size: int) -> np.ndarray:
    """bool (size of the held-out index,): whether fewer than ``BOILERPLATE`` of the documents hold a run."""
    counts = np.zeros(size, dtype=np.int64)
    for overlap in overlaps:
        counts[overlap.heldout] += 1
    return counts < BOILERPLATE


def reason_to_drop(overlap: Overlap, rare: np.ndarray) -> str | None:
    """Why a document may not be trained on, or None. ``rare`` is what ``rare_places`` found."""
    if overlap.items:
        return "holds an evaluation task"
    if overlap.runs and rare[overlap.heldout].sum() > SHARE * overlap.runs:
        return "overlaps a held-out document"
    return None
