"""The quantised model: what it costs against its float parent, every score of both, what calibration saw."""

from typing import Any

from tasks.reporting.facts import Facts
from tasks.reporting.gains import moved
from tasks.reporting.scores import Scores

STAGE = "quantize"
PERPLEXITY = "perplexity"  # a relative change beside the scores
PERPLEXITIES = {"answers": "right answers to held-out tasks", "bits_per_byte": "held-out documents"}


def quantization(facts: Facts, scores: Scores) -> dict[str, Any]:
    """What the page shows of the stage; empty where the recipe has none that is finished."""
    stage = facts.stages.get(STAGE)
    if stage is None or stage.record is None:
        return {}
    beside = [row for row in scores.beside_parent if row["after"] == STAGE]
    return {
        "models": facts.json(STAGE, "quantization.json") or [],
        "parent": beside[0]["before"] if beside else "",
        "rows": moved(scores, beside),
        "perplexities": [
            (PERPLEXITIES[row["suite"]], row)
            for row in sorted(beside, key=lambda row: row["suite"])
            if row["name"] == PERPLEXITY and row["suite"] in PERPLEXITIES
        ],
        "compared": sum(row["name"] != PERPLEXITY for row in beside),
        "calibrations": [
            _calibration(name, found) for name, found in (facts.json(STAGE, "calibration.json") or {}).items()
        ],
        "loaded_by": stage.record["facts"].get("loaded_by", {}),
    }  # fmt: skip


def _calibration(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Of one quantised model: the scheme, how many tokens the experts saw, kurtosis of what matrices read."""
    layers = found.get("expert_tokens", {})
    counts = [count for layer in layers.values() for count in layer]
    kurtosis = found.get("kurtosis", {})
    return {
        "name": name, "scheme": found["scheme"], "tokens": found["tokens"],
        "experts": len(counts), "fewest": min(counts, default=None), "most": max(counts, default=None),
        "pooled": sum(len(experts) for experts in found.get("pooled", {}).values()),
        "rounded": found.get("rounded_to_nearest", []),
        "kurtosis": [
            (kind, before, kurtosis.get("after", {}).get(kind))
            for kind, before in kurtosis.get("before", {}).items()
        ],
    }  # fmt: skip
