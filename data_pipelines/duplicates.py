"""Near-duplicates by MinHash over runs of five words, with datasketch's sketches and index."""

import numpy as np
from datasketch import MinHash, MinHashLSH

from data_pipelines.ngrams import ngram_hashes

SHINGLE = 5  # words
AT_ONCE = 65_536  # shingles hashed in one go, to bound memory


class Sketcher:
    """Makes MinHash sketches: ``permutations`` uint32 values each."""

    def __init__(self, permutations: int):
        self._empty = MinHash(num_perm=permutations, hashfunc=int, scheme="affine32")

    def sketch(self, words: np.ndarray) -> np.ndarray:
        """uint32 (permutations,) of a text's word hashes; a text shorter than a shingle is one shingle."""
        shingles = ngram_hashes(words, min(SHINGLE, len(words))) >> np.uint64(32)
        minhash = self._empty.copy()
        for start in range(0, len(shingles), AT_ONCE):
            minhash.update_batch(shingles[start : start + AT_ONCE].tolist())
        return minhash.digest()


class NearDuplicates:
    """Remembers sketches by name and finds one at least ``threshold`` similar (estimated Jaccard index)."""

    def __init__(self, permutations: int, threshold: float):
        self.threshold = threshold
        self._index = MinHashLSH(threshold=threshold, num_perm=permutations)
        self._sketches: dict[str, np.ndarray] = {}

    def find(self, sketch: np.ndarray) -> tuple[str, float] | None:
        """The most similar remembered name and its similarity, or None. Ties go to the lower name."""
        candidates = self._index.query(_minhash(sketch))
        scored = [(float(np.mean(self._sketches[name] == sketch)), name) for name in candidates]
        close = [(-score, name) for score, name in scored if score >= self.threshold]
        if not close:
            return None
        score, name = min(close)
        return name, -score

    def add(self, name: str, sketch: np.ndarray) -> None:
        self._sketches[name] = sketch
        self._index.insert(name, _minhash(sketch), check_duplication=False)


def _minhash(sketch: np.ndarray) -> MinHash:
    return MinHash(hashvalues=sketch, permutations=_PERMUTATIONS[len(sketch)], scheme="affine32")


class _Permutations(dict):
    """The index wants whole MinHash objects; their permutations are made once a size."""

    def __missing__(self, size: int) -> np.ndarray:
        self[size] = MinHash(num_perm=size, scheme="affine32").permutations
        return self[size]


_PERMUTATIONS = _Permutations()
