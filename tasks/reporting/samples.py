"""Samples for the page: dialogues cut into turns, chats of fine-tuning, documents coloured by surprise."""

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from environments.interface import MODES
from model.chat.segments import segments
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import ASSISTANT, OBSERVATION, START, SYSTEM, USER
from tasks.reporting.facts import Facts
from tasks.reporting.formats import marked, visible

_ROLES = {SYSTEM: "system", USER: "user", ASSISTANT: "assistant", OBSERVATION: "tool"}
_ROLE = re.compile("(" + "|".join(map(re.escape, _ROLES)) + ")")
MOST_BITS = 12.0  # darkest colour
LESSONS_READ = 3000  # chats among which the lessons are looked for


def turns(runs: list[list[Any]]) -> list[dict[str, Any]]:
    """Turns of a rendered chat: role, whether the model had to choose that role, and runs of marked text."""
    found: list[dict[str, Any]] = []
    for text, trained in runs:
        for part in _ROLE.split(text):
            if part in _ROLES:
                found.append({"role": _ROLES[part], "chosen": trained, "runs": []})
            elif part and found:
                found[-1]["runs"].append({"text": marked(part), "trained": trained})
            elif part and part != "".join(START):
                found.append(
                    {"role": "text", "chosen": False, "runs": [{"text": marked(part), "trained": trained}]}
                )
    return found


def chats(samples: list[dict[str, Any]], checkpoint: str, per_mode: int) -> list[dict[str, Any]]:
    """Dialogues of a checkpoint, ``per_mode`` of each thinking mode; each mode begins one task further on."""
    by_mode: dict[str, list[dict]] = {}
    for sample in samples:
        if sample.get("kind") == "chat" and sample["checkpoint"] == checkpoint:
            by_mode.setdefault(sample["mode"], []).append(sample)
    chosen = []
    for number, group in enumerate(by_mode.values()):
        chosen += (group[number:] + group[:number])[:per_mode]
    return [{**sample, "turns": turns(sample["segments"])} for sample in chosen]


def surprises(samples: list[dict[str, Any]], checkpoint: str) -> list[dict[str, Any]]:
    """One document a source, each token with the depth of its colour in per cent."""
    first: dict[str, dict] = {}
    for sample in samples:
        if sample.get("kind") == "surprise" and sample["checkpoint"] == checkpoint:
            first.setdefault(sample["source"], sample)
    return [
        {
            "source": sample["source"],
            "score": sample["score"],
            "tokens": [
                {"text": visible(piece), "bits": bits, "depth": round(100 * min(bits / MOST_BITS, 1.0))}
                for piece, bits in sample["tokens"][:200]
            ],
        }
        for sample in first.values()
    ]


def completions(samples: list[dict[str, Any]], checkpoint: str) -> list[dict[str, Any]]:
    """Retrieval items: what each attention answered to the same question."""
    by_item: dict[str, dict[str, Any]] = {}
    for sample in samples:
        if sample.get("kind") == "completion" and sample["checkpoint"] == checkpoint:
            entry = by_item.setdefault(sample["id"], {**sample, "outputs": {}})
            entry["outputs"][sample["attention"]] = {"text": sample["output"], "score": sample["score"]}
    return list(by_item.values())


def lessons(facts: Facts) -> list[dict[str, Any]]:
    """Of what fine-tuning trains on: one rich chat of each mode, and one with a wrong turn that is masked."""
    tokenizer_file, path = facts.file("tokenizer", "tokenizer.json"), facts.file("sft_data", "chats.jsonl")
    if tokenizer_file is None or path is None:
        return []
    tokenizer = Tokenizer.load(tokenizer_file.parent)
    with open(path, encoding="utf-8") as file:
        chosen = _choose(json.loads(line) for line in islice(file, LESSONS_READ))
    return [
        {
            "label": label, "family": f"{chat['environment']}/{chat['family']}",
            "turns": turns(segments(tokenizer, chat["messages"], chat.get("tools"), chat["mode"])),
        }
        for label, chat in chosen.items()
    ]  # fmt: skip


def _choose(chats: Iterator[dict]) -> dict[str, dict]:
    """The first chat for each label, of those with more than one turn or with a wrong one."""
    chosen: dict[str, dict] = {}
    for chat in chats:
        wrong = any(message.get("train") is False for message in chat["messages"])
        label = "a wrong turn, kept but masked" if wrong else f"thinking {chat['mode']}"
        if wrong or len(chat["messages"]) > 2:
            chosen.setdefault(label, chat)
        if len(chosen) > len(MODES):
            break
    return chosen
