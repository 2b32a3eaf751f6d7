"""Bits per byte on held-out documents: the one measure of language modelling that no tokenizer flatters.

Bits per token stand beside them, for the perplexity of models with one tokenizer.
"""

import math
from dataclasses import dataclass
from typing import Any

from evals.documents import DocumentSuite, bits_and_bytes
from evals.policy import Policy, Result, Score, Scored
from evals.suite import ratio


@dataclass(frozen=True)
class BitsPerByte(DocumentSuite):
    """Under the attention that the model itself uses. Scores: ``all``, ``per_token``, and one by source."""

    samples: int = 0
    name: str = "bits_per_byte"

    def protocol(self) -> dict[str, Any]:
        return {**DocumentSuite.protocol(self), "version": 2}

    def run(self, policy: Policy) -> Result:
        scored = policy.logprobs(self.texts, self.max_tokens, policy.attentions[0])
        tokens = [float(len(item.nats)) for item in scored]
        return Result(self.scores(*bits_and_bytes(scored), tokens), self._samples(scored))

    def scores(self, bits: list[float], sizes: list[float], tokens: list[float]) -> list[Score]:
        """Scores from the bits, bytes and tokens of each document: over all of them, and by source."""
        scores = [ratio("all", bits, sizes), ratio("per_token", bits, tokens)]
        for source in sorted({document.source for document in self.documents}):
            rows = [row for row, document in enumerate(self.documents) if document.source == source]
            scores.append(ratio(source, [bits[row] for row in rows], [sizes[row] for row in rows]))
        return scores

    def _samples(self, scored: list[Scored]) -> list[dict[str, Any]]:
        """Documents with the bits of each token, one a source in turn."""
        order = sorted(range(len(scored)), key=lambda row: self.documents[row].id)
        by_source: dict[str, list[int]] = {}
        for row in order:
            by_source.setdefault(self.documents[row].source, []).append(row)
        turns = [
            rows[turn] for turn in range(self.samples) for rows in by_source.values() if turn < len(rows)
        ]
        return [
            {
                "kind": "surprise",
                "id": self.documents[row].id,
                "source": self.documents[row].source,
                "score": float(scored[row].nats.sum() / math.log(2) / scored[row].sizes.sum()),
                "tokens": [
                    [piece, round(float(nats) / math.log(2), 2)]
                    for piece, nats in zip(scored[row].pieces, scored[row].nats, strict=True)
                ],
            }
            for row in turns[: self.samples]
        ]
