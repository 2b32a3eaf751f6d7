"""Bits per byte on held-out documents, by source: the one measure of language modelling that no tokenizer
flatters."""

import math
from dataclasses import dataclass
from typing import Any

from evals.policy import Policy, Result, Score, Scored
from evals.suite import ratio
from pipeline.artifacts import digest_of


@dataclass(frozen=True)
class Document:
    id: str  # SHA-256 of the text
    source: str
    text: str


@dataclass(frozen=True)
class BitsPerByte:
    """The first ``max_tokens`` tokens of each document, under the attention that the model itself uses."""

    documents: list[Document]
    max_tokens: int
    samples: int = 0
    name: str = "bits_per_byte"

    def protocol(self) -> dict[str, Any]:
        texts = [document.text for document in self.documents]
        return {"version": 1, "texts": digest_of(texts), "max_tokens": self.max_tokens}

    def run(self, policy: Policy) -> Result:
        texts = [document.text for document in self.documents]
        scored = policy.logprobs(texts, self.max_tokens, policy.attentions[0])
        bits = [float(item.nats.sum()) / math.log(2) for item in scored]
        sizes = [float(item.sizes.sum()) for item in scored]
        return Result(self.scores(bits, sizes), self._samples(scored))

    def scores(self, bits: list[float], sizes: list[float]) -> list[Score]:
        """Scores from the bits and bytes of each document: over all of them, and by source."""
        scores = [ratio("all", bits, sizes)]
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
