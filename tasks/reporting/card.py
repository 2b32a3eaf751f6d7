"""The model card of the released checkpoint, the last one of the graph, from the records of its run alone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.recipe.model import ModelSection
from tasks.reporting import formats
from tasks.reporting.conduct import conduct
from tasks.reporting.contamination import contamination
from tasks.reporting.corpus import corpus, funnel
from tasks.reporting.cost import costs
from tasks.reporting.facts import Facts
from tasks.reporting.gains import gains
from tasks.reporting.provenance import versions
from tasks.reporting.quantization import quantization
from tasks.reporting.scores import Scores

CARD = "model_card.md"
EASY, HARD = 0.8, 0.2  # exact match from which a family counts as learned, and below which as not learned
NAMED = 12  # families in a sentence


def released(facts: Facts) -> str | None:
    """The last stage that left a checkpoint; None where none did."""
    names = [n for n, s in facts.stages.items() if s.record and (facts.folders[n] / "config.json").is_file()]
    return names[-1] if names else None


def card(facts: Facts, scores: Scores, title: str) -> dict[str, Any] | None:
    """The context of ``model_card.md.jinja``; None where there is no checkpoint."""
    name = released(facts)
    if name is None:
        return None
    record = facts.stages[name].record
    # A checkpoint that was not scored itself is described by the last one that was, and says so.
    scored = name if name in scores.checkpoints else (scores.checkpoints or [""])[-1]
    shape = facts.stages["pretrain"].record["sections"]["model"] if _has(facts, "pretrain") else None
    return {
        "title": title, "recipe": facts.recipe, "stage": name, "record": record, "scored": scored,
        "shape": ModelSection(**shape).config() if shape else None,
        "path": facts.folders[name], "positions": _positions(facts.folders[name]),
        "weights": _weights(record["files"]),
        "costs": costs(facts), "sources": corpus(facts), "funnel": funnel(facts),
        "contamination": contamination(facts), "versions": versions(facts),
        "rows": [
            (line, row) for line in scores.lines() if (row := scores.get(scored, line.suite, line.name))
        ],
        "families": scores.families(scored), "protocol": scores.protocol_hash(scored),
        "limits": [*_limits(facts, scores, scored)], "quantization": quantization(facts, scores),
    }  # fmt: skip


def _weights(files: dict[str, list]) -> int:
    """Bytes of the checkpoint itself: an export in a folder beside it has weights of its own."""
    return sum(size for name, (size, _) in files.items() if name.endswith(".safetensors") and "/" not in name)


def _has(facts: Facts, name: str) -> bool:
    return name in facts.stages and facts.stages[name].record is not None


def _positions(folder: Path) -> int | None:
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"]
    except (OSError, ValueError, KeyError):
        return None


def _limits(facts: Facts, scores: Scores, name: str) -> Iterator[str]:
    """What was measured and speaks against the model, a sentence each."""
    yield from _language(scores, name)
    yield from _families(scores, name)
    yield from _formats(scores, name)
    yield from _suites(scores, name)
    for row in conduct(scores):
        cell = row["cells"][scores.checkpoints.index(name)]
        bad = cell and (cell["value"] > 0 if row["line"].lower_is_better else cell["value"] < 1)
        if bad:
            share = formats.score(cell["value"], "share")
            yield f"{row['line'].label}: {share} ({cell['count']} of {cell['n']})."
    for stage in gains(scores):
        if stage["forgot"]:
            lost = ", ".join(f"{family} {100 * c['change']:+.0f}" for family, c in stage["forgot"][:NAMED])
            pair = f"Stage {stage['after']} forgot, against {stage['before']}"
            yield f"{pair}, in points of exact match: {lost}."


def _language(scores: Scores, name: str) -> Iterator[str]:
    row, gram = scores.get(name, "bits_per_byte", "all"), scores.get("3-gram", "bits_per_byte", "all")
    if row and gram and row["value"] >= gram["value"]:
        yield (
            f"On documents it is no better than a 3-gram model fitted on the same tokens: {row['value']:.3f} "
            f"bits per byte against {gram['value']:.3f}."
        )


def _families(scores: Scores, name: str) -> Iterator[str]:
    families = scores.families(name)
    if not families:
        return
    learned = sum(family["all"]["value"] >= EASY for family in families)
    yield f"Of {len(families)} families of held-out tasks {learned} reach {EASY:.0%} exact match."
    hard = [family["family"] for family in families if family["all"]["value"] < HARD]
    if hard:
        more = f" and {len(hard) - NAMED} more" if len(hard) > NAMED else ""
        yield f"Below {HARD:.0%} exact match: {', '.join(hard[:NAMED])}{more}."


def _formats(scores: Scores, name: str) -> Iterator[str]:
    faults = [
        f"{formats.score(1 - row['value'], 'share')} {row['name'].partition('/')[2]}"
        for row in scores.rows
        if row["checkpoint"] == name and row["suite"] == "environments"
        if row["name"].startswith("valid/") and row["value"] < 1
    ]
    if faults:
        yield f"Answers that do not keep to the chat format, by thinking mode: {', '.join(faults)}."


def _suites(scores: Scores, name: str) -> Iterator[str]:
    """Long texts, under the attention that the model itself uses, and code."""
    for suite, what in (("long_context", "Retrieval from long texts"), ("ruler", "RULER's 13 tasks")):
        row = scores.get(name, suite, "sparse/all") or scores.get(name, suite, "dense/all")
        if row and row["value"] < EASY:
            yield f"{what}: {formats.score(row['value'], 'share')} right."
    row = scores.get(name, "humaneval", "pass@1")
    if row and row["value"] < EASY:
        yield f"HumanEval: {formats.score(row['value'], 'share')} of {row['n']} problems, pass@1."
