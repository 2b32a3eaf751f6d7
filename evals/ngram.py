"""Unigram and trigram models with absolute discounting, interpolated (Ney, Essen and Kneser 1994): the
baselines that a network fitted on the same tokens has to beat."""

from dataclasses import dataclass
from typing import Self

import numpy as np

BASELINES = ("unigram", "3-gram")  # as scores name them


@dataclass(frozen=True)
class _Order:
    """Counts of the n-grams of one order, and of their contexts."""

    grams: np.ndarray  # sorted int64 codes
    counts: np.ndarray
    contexts: np.ndarray  # sorted codes of the first n - 1 tokens
    totals: np.ndarray  # how often each context was continued
    types: np.ndarray  # with how many different tokens
    discount: float

    def interpolate(self, gram: np.ndarray, context: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """Probability of each n-gram's last token; unseen contexts pass on ``lower``, the order below."""
        count = _look_up(self.grams, self.counts, gram)
        total = _look_up(self.contexts, self.totals, context)
        types = _look_up(self.contexts, self.types, context)
        seen = total > 0
        safe = np.where(seen, total, 1)
        value = (np.maximum(count - self.discount, 0) + self.discount * types * lower) / safe
        return np.where(seen, value, lower)


class NGram:
    """``P(c | a b)`` as a mixture down to the uniform distribution over the vocabulary."""

    def __init__(self, vocab_size: int, unigram: np.ndarray, bigrams: _Order, trigrams: _Order):
        self.vocab_size, self._unigram, self._bigrams, self._trigrams = vocab_size, unigram, bigrams, trigrams

    @classmethod
    def fit(cls, windows: np.ndarray, vocab_size: int) -> Self:
        """Count the windows (rows, T + 1) of integer tokens that a model with context T was trained on."""
        windows = np.asarray(windows, dtype=np.int64)
        if windows.ndim != 2 or windows.shape[1] < 3:
            raise ValueError(f"windows must be (rows, 3 or more tokens), not {windows.shape}")
        tokens = windows[:, 1:].ravel()  # the first token of a window is only context
        counts = np.bincount(tokens, minlength=vocab_size).astype(float)
        discount = _discount(counts[counts > 0])
        types = np.count_nonzero(counts)
        unigram = (np.maximum(counts - discount, 0) + discount * types / vocab_size) / counts.sum()
        a, b, c = windows[:, :-2].ravel(), windows[:, 1:-1].ravel(), windows[:, 2:].ravel()
        pairs = windows[:, :-1].ravel() * vocab_size + windows[:, 1:].ravel()
        return cls(
            vocab_size,
            unigram,
            _count(pairs, vocab_size),
            _count((a * vocab_size + b) * vocab_size + c, vocab_size),
        )

    def unigram_nats(self, tokens: np.ndarray) -> np.ndarray:
        """Negative log-likelihood of each token, (n,) float64."""
        return -np.log(self._unigram[np.asarray(tokens, dtype=np.int64)])

    def trigram_nats(self, tokens: np.ndarray, start: int) -> np.ndarray:
        """The same of each token after its two predecessors; the first one follows ``start`` alone."""
        tokens = np.asarray(tokens, dtype=np.int64)
        before = np.concatenate([[start], tokens])
        b, c = before[:-1], before[1:]
        pair = self._bigrams.interpolate(b * self.vocab_size + c, b, self._unigram[c])
        probability = pair.copy()
        a = before[:-2]
        context = a * self.vocab_size + b[1:]
        probability[1:] = self._trigrams.interpolate(context * self.vocab_size + c[1:], context, pair[1:])
        return -np.log(probability)


def _count(grams: np.ndarray, vocab_size: int) -> _Order:
    codes, counts = np.unique(grams, return_counts=True)
    contexts, first = np.unique(codes // vocab_size, return_index=True)
    totals = np.add.reduceat(counts, first)
    types = np.diff(np.append(first, len(codes)))
    return _Order(codes, counts, contexts, totals, types, _discount(counts))


def _discount(counts: np.ndarray) -> float:
    """``n1 / (n1 + 2 n2)``, of the n-grams seen once and twice; 0.5 where there are none of one kind."""
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return once / (once + 2 * twice) if once and twice else 0.5


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value of each wanted key, 0 where it is absent. ``keys`` is sorted."""
    position = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[position] == wanted, values[position], 0)
