"""DeepSeek sparse attention against its controls on held-out documents at the long length (paper section
2.1.2): dense, DSA, the last k keys, k keys at random; and how much of dense attention the indexer finds."""

import math
from dataclasses import dataclass

from evals.documents import DocumentSuite, bits_and_bytes
from evals.policy import Attention, IndexerQuality, Policy, Result, Score
from evals.statistics import bootstrap_difference
from evals.suite import mean, ratio
from pipeline.errors import UserError


@dataclass(frozen=True)
class SparseAttention(DocumentSuite):
    """Scores: ``bpb/<attention>``, ``gap/<attention>`` (its loss above dense, as a share of dense, paired
    by document), and of the indexer ``indexer_kl``, ``topk_recall``, ``window_recall`` (shares of what the
    best k hold).
    """

    name: str = "sparse_attention"

    def run(self, policy: Policy) -> Result:
        order: list[Attention] = ["dense", *(a for a in policy.attentions if a != "dense")]
        bits: dict[str, list[float]] = {}
        for attention in order:
            scored = policy.logprobs(self.texts, self.max_tokens, attention)
            bits[attention], sizes = bits_and_bytes(scored)
        scores = [ratio(f"bpb/{attention}", bits[attention], sizes) for attention in order]
        scores += [
            relative_gap(f"gap/{attention}", bits["dense"], bits[attention]) for attention in order[1:]
        ]
        if "sparse" in order:
            scores += self._indexer(policy.indexer_quality(self.texts, self.max_tokens), policy.top_k)
        return Result(scores, [])

    def _indexer(self, quality: list[IndexerQuality], top_k: int) -> list[Score]:
        """Per document the mean over layers; a document with no query beyond the budget decides nothing."""
        kept = [item for item in quality if not any(map(math.isnan, item.best))]
        if not kept:
            raise UserError(f"no held-out document has more than {top_k} tokens: raise evaluate.long_length")
        best = [sum(item.best) for item in kept]
        scores = [
            mean("indexer_kl", [sum(item.kl) / len(item.kl) for item in quality]),
            ratio("topk_recall", [sum(item.held) for item in kept], best),
            ratio("window_recall", [sum(item.window) for item in kept], best),
        ]
        for layer in range(len(kept[0].best)):
            held, top = [item.held[layer] for item in kept], [item.best[layer] for item in kept]
            scores.append(ratio(f"topk_recall/layer_{layer}", held, top))
        return scores


def relative_gap(name: str, dense: list[float], other: list[float]) -> Score:
    """``sum(other) / sum(dense) - 1`` over the same documents."""
    differences = [b - a for a, b in zip(dense, other, strict=True)]
    low, high = bootstrap_difference(([0.0] * len(dense), dense), (differences, dense))
    return Score(name, sum(differences) / sum(dense), low, high, len(dense), differences, list(dense))
