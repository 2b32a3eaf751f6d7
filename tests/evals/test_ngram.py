import math

import numpy as np
import pytest

from evals.ngram import NGram


def test_values_of_a_hand_example():
    # One window 0 1 2 0 1 3: targets 1 2 0 1 3; bigrams 01 12 20 01 13; trigrams 012 120 201 013.
    model = NGram.fit(np.array([[0, 1, 2, 0, 1, 3]]), vocab_size=5)
    # Unigram counts 0:1 1:2 2:1 3:1, n1 = 3, n2 = 1, so D = 3/5; four types, five tokens, five words.
    d1 = 3 / 5
    p1 = {1: (2 - d1 + d1 * 4 / 5) / 5, 3: (1 - d1 + d1 * 4 / 5) / 5, 4: (d1 * 4 / 5) / 5}
    assert model.unigram_nats([1, 3, 4]) == pytest.approx([-math.log(p1[t]) for t in (1, 3, 4)])
    # Bigrams: 01 twice, the others once: n1 = 3, n2 = 1, D = 3/5. Context 0 was followed by 1 alone, twice.
    p_1_after_0 = (2 - d1 + d1 * 1 * p1[1]) / 2
    p_3_after_1 = (1 - d1 + d1 * 2 * p1[3]) / 2
    # Trigrams are all seen once, so D falls back to 0.5. Context 01 was followed by 2 and by 3.
    p_3_after_01 = (1 - 0.5 + 0.5 * 2 * p_3_after_1) / 2
    assert model.trigram_nats([1, 3], start=0) == pytest.approx(
        [-math.log(p_1_after_0), -math.log(p_3_after_01)]
    )


def test_unseen_contexts_fall_back():
    model = NGram.fit(np.array([[0, 1, 2, 0, 1, 3]]), vocab_size=5)
    # Token 4 was never a context: what follows it has its unigram probability.
    assert model.trigram_nats([2], start=4) == pytest.approx(model.unigram_nats([2]))


def test_distributions_sum_to_one():
    rng = np.random.default_rng(1)
    vocabulary = 12
    model = NGram.fit(rng.integers(0, vocabulary, (30, 9)), vocabulary)
    for a, b in rng.integers(0, vocabulary, (20, 2)):
        total = sum(math.exp(-model.trigram_nats([b, c], start=a)[1]) for c in range(vocabulary))
        assert total == pytest.approx(1.0)
    assert np.exp(-model.unigram_nats(np.arange(vocabulary))).sum() == pytest.approx(1.0)


def test_it_learns_what_a_trigram_can_know():
    rng = np.random.default_rng(2)
    draws = rng.integers(0, 2, (400, 2))
    # The third token is the exclusive or of the two before it: invisible to a unigram.
    windows = np.column_stack([draws, draws[:, 0] ^ draws[:, 1]])
    model = NGram.fit(windows, vocab_size=2)
    nats = [model.trigram_nats([b, a ^ b], start=a)[1] for a in (0, 1) for b in (0, 1)]
    assert max(nats) < 0.05
    assert model.unigram_nats([0, 1]).min() > 0.5


def test_windows_of_a_wrong_shape():
    with pytest.raises(ValueError, match=r"\(5,\)"):
        NGram.fit(np.arange(5), 5)
