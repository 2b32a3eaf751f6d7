"""Hashes of runs of words: what de-duplication and decontamination compare, in numpy for speed.

A word is a run of letters, digits and underscores in lower case, so that layout and punctuation do not hide
a copy.
"""

import hashlib
import re

import numpy as np

# Words of the runs that training data may not share with evaluation sets: the length of GPT-3 (arXiv
# 2005.14165, appendix C) and of many since.
NGRAM = 13
WORD = re.compile(r"\w+")
CACHED_WORDS = 2_000_000
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class _WordHashes(dict):
    """Word -> 64-bit hash, the same on every machine; remembers words it has seen."""

    def __missing__(self, word: str) -> int:
        if len(self) >= CACHED_WORDS:
            self.clear()
        value = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
        self[word] = value
        return value


_hashes = _WordHashes()


def word_hashes(text: str) -> np.ndarray:
    """uint64 (words,): a hash of each word of the text, in order."""
    words = WORD.findall(text.lower())
    return np.fromiter(map(_hashes.__getitem__, words), dtype=np.uint64, count=len(words))


def ngram_hashes(words: np.ndarray, n: int) -> np.ndarray:
    """uint64 (words - n + 1,): a hash of each run of ``n`` words; empty for a shorter text."""
    count = len(words) - n + 1
    if count <= 0:
        return np.empty(0, dtype=np.uint64)
    hashes = np.zeros(count, dtype=np.uint64)
    for place in range(n):
        hashes = hashes * MULTIPLIER + words[place : place + count]
    hashes ^= hashes >> np.uint64(29)
    return hashes * MULTIPLIER


def contained(hashes: np.ndarray, index: np.ndarray) -> np.ndarray:
    """bool, one for each hash: whether the sorted ``index`` holds it."""
    if not len(index):
        return np.zeros(len(hashes), dtype=bool)
    places = np.minimum(np.searchsorted(index, hashes), len(index) - 1)
    return index[places] == hashes
