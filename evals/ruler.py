"""RULER's 13 tasks (arXiv 2404.06654) over our own text, under dense, sparse and window attention."""

from dataclasses import dataclass
from typing import Any

from environments.ruler.item import Match, score
from evals.long_context import LongContext, LongContextItem


@dataclass(frozen=True)
class RulerQuestion(LongContextItem):
    match: Match


@dataclass(frozen=True)
class Ruler(LongContext):
    """Scores as those of ``LongContext``; an item counts the share of its answers that occur in the first
    line of the completion, one of a question over passages whether any of them does.
    """

    items: list[RulerQuestion]
    name: str = "ruler"

    def protocol(self) -> dict[str, Any]:
        return {**LongContext.protocol(self), "match": [item.match for item in self.items]}

    def _value(self, item: RulerQuestion, output: str) -> float:
        return score(item.answers, item.match, output)
