"""What training data shares with evaluation: documents by curation's n-grams, chats and tasks by prompts."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tasks.reporting.facts import Facts

# Reasons of curation's funnel that are about evaluation, and what they mean.
REASONS = {
    "held out for evaluation": "the held-out documents themselves",
    "holds an evaluation task": "share a run of 13 words with a task",
    "overlaps a held-out document": "share more than a tenth of their runs with held-out documents",
    "near-duplicate of a held-out document": "nearly a held-out document, by MinHash",
}
PROMPTED = (("sft_data", "chats.jsonl"), ("rl_tasks", "tasks.jsonl"))


def contamination(facts: Facts) -> dict[str, Any]:
    """Rows of dropped documents and of prompts in common; empty where neither stage is there."""
    funnel = facts.json("curate", "funnel.json") or {}
    sums: dict[str, list[int]] = {reason: [0, 0] for reason in REASONS}
    for row in funnel.get("rows", []):
        if row["reason"] in sums:
            sums[row["reason"]][0] += row["documents"]
            sums[row["reason"]][1] += row["characters"]
    documents = [
        {"reason": reason, "meaning": REASONS[reason], "documents": count, "characters": size}
        for reason, (count, size) in sums.items()
    ]
    eval_sets = facts.stages.get("eval_sets")
    return {
        "documents": documents if funnel.get("rows") else [],
        "ngrams": eval_sets.metrics.get("eval/ngrams") if eval_sets else None,
        "prompts": _prompts_in_common(facts),
    }


def _prompts_in_common(facts: Facts) -> list[dict[str, Any]]:
    """Of chats and tasks that are trained on: how many ask word for word what evaluation asks."""
    asked = facts.file("eval_sets", "tasks.jsonl")
    if asked is None:
        return []
    held = {prompt(task["messages"]) for task in _rows(asked)}
    rows = []
    for stage, name in PROMPTED:
        path = facts.file(stage, name)
        if path is not None:
            prompts = [prompt(row["messages"]) for row in _rows(path)]
            rows.append({"stage": stage, "all": len(prompts), "common": sum(p in held for p in prompts)})
    return rows


def prompt(messages: list[dict[str, Any]]) -> str:
    """What a dialogue asks before the first answer, whatever the layout of its spaces."""
    first = next((n for n, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    texts = [" ".join(str(m.get("content") or "").split()) for m in messages[:first]]
    return "\n".join(texts)


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    with open(path, encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
