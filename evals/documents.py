"""What the suites over held-out documents share: the documents, their protocol, bits and bytes of each."""

import math
from dataclasses import dataclass
from typing import Any

from evals.policy import Scored
from pipeline.artifacts import digest_of


@dataclass(frozen=True)
class Document:
    id: str  # SHA-256 of the text
    source: str
    text: str


@dataclass(frozen=True)
class DocumentSuite:
    """The first ``max_tokens`` tokens of each document."""

    documents: list[Document]
    max_tokens: int

    @property
    def texts(self) -> list[str]:
        return [document.text for document in self.documents]

    def protocol(self) -> dict[str, Any]:
        return {"version": 1, "texts": digest_of(self.texts), "max_tokens": self.max_tokens}


def bits_and_bytes(scored: list[Scored]) -> tuple[list[float], list[float]]:
    """Bits and size in bytes of each text."""
    bits = [float(item.nats.sum()) / math.log(2) for item in scored]
    return bits, [float(item.sizes.sum()) for item in scored]
