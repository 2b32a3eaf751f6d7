"""The quantised model for the page: what it was made of, and its scores beside its parent's."""

from typing import Any

from tasks.reporting.facts import Facts
from tasks.reporting.scores import Scores

STAGE = "quantize"


def quantization(facts: Facts, scores: Scores) -> dict[str, Any]:
    """Empty where the recipe has no such stage."""
    if STAGE not in facts.stages or facts.stages[STAGE].record is None:
        return {}
    return {"metrics": facts.stages[STAGE].metrics}
