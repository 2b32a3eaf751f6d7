"""The page ``trajectories.html``: rollouts that reinforcement learning kept, with every token.

It is one file. The data stand in it as JSON, in ASCII and without ``<``, so that no text of a model or a
tool can end the script element, and its program writes them as text, never as markup.
"""

import base64
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from model.chat.tokenizer import Tokenizer
from pipeline.tracking import TRAJECTORIES as FILE
from tasks.reporting.facts import Facts

FOLDER = Path(__file__).parent
STAGE_TOKENS = 60_000  # that the page holds of a stage, in whole steps that are evenly spread
MOST_TOKENS = 4_000  # of a trajectory: the first and the last of each segment
MOST_CHARACTERS = 6_000  # of a text in a message: its beginning and its end
PLAIN, SPECIAL, BYTES = 0, 1, 2  # kinds of pieces
DAMAGE = (AttributeError, IndexError, KeyError, TypeError, ValueError)  # a line that is not as it should be


@dataclass
class Viewer:
    """What the page holds; ``stages`` have notes on what is left out or amiss."""

    stages: list[dict[str, Any]] = field(default_factory=list)
    items: list[dict[str, Any]] = field(default_factory=list)  # trajectories
    pieces: list[tuple[int, str, int]] = field(default_factory=list)  # token id, text, kind; by place

    def data(self, recipe: str) -> str:
        """All of it as JSON that is safe inside a script element."""
        values = {"recipe": recipe, "stages": self.stages, "items": self.items, "pieces": self.pieces}
        return json.dumps(values, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def viewer(facts: Facts, stages: list[str]) -> Viewer:
    """The kept trajectories of those of ``stages`` that are finished."""
    found = Viewer()
    pieces = _Pieces(found.pieces)
    for name in stages:
        if facts.stages[name].record is None:
            continue
        stage = {"name": name, "description": facts.stages[name].description, "notes": []}
        path = facts.file(name, FILE)
        if path is None:
            stage["notes"].append(f"its artifact has no {FILE}: run the stage again")
        else:
            pieces.use(facts.folders[name], stage["notes"])
            found.items += [{"stage": name, **item} for item in _items(path, pieces, stage["notes"])]
        found.stages.append(stage)
    return found


def script() -> tuple[str, str]:
    """The page's program, and its name in a content security policy: no other script may run there."""
    text = (FOLDER / "trajectories.js").read_text(encoding="utf-8")
    return text, "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


class _Pieces:
    """The texts of tokens, each once."""

    def __init__(self, pieces: list[tuple[int, str, int]]):
        self._pieces, self._places = pieces, {}
        self._tokenizer: Tokenizer | None = None

    def use(self, folder: Path, notes: list[str]) -> None:
        try:
            self._tokenizer = Tokenizer.load(folder)
        except ValueError:
            self._tokenizer = None
            notes.append("its artifact has no readable tokenizer.json: tokens are shown by their numbers")

    def place(self, token: int) -> int:
        piece = self._piece(token)
        if piece not in self._places:
            self._places[piece] = len(self._pieces)
            self._pieces.append(piece)
        return self._places[piece]

    def _piece(self, token: int) -> tuple[int, str, int]:
        if self._tokenizer is None:
            return token, str(token), BYTES
        if token in self._tokenizer.names_by_id:
            return token, self._tokenizer.names_by_id[token], SPECIAL
        data = self._tokenizer.token_bytes(token)
        try:
            return token, data.decode(), PLAIN
        except UnicodeDecodeError:  # part of a character
            return token, data.hex(" "), BYTES


def _items(path: Path, pieces: _Pieces, notes: list[str]) -> Iterator[dict[str, Any]]:
    """All trajectories of as many steps as the page may hold."""
    sizes: dict[int, int] = {}
    broken, total = set(), 0
    for number, line in _lines(path):
        total += 1
        try:
            row = json.loads(line)
            size = min(sum(len(segment["ids"]) for segment in row["segments"]), MOST_TOKENS)
            sizes[int(row["step"])] = sizes.get(int(row["step"]), 0) + size
        except DAMAGE:
            broken.add(number)
    steps = _spread(sorted(sizes), STAGE_TOKENS / max(sum(sizes.values()), 1))
    for number, line in _lines(path):
        try:
            if number not in broken and int((row := json.loads(line))["step"]) in steps:
                yield _item(row, pieces.place)
        except DAMAGE:
            broken.add(number)
    if broken:
        notes.append(f"{len(broken)} of {total} lines of {FILE} cannot be read and are left out")
    if len(steps) < len(sizes):
        notes.append(f"{len(steps)} of its {len(sizes)} steps are here; {FILE} of its artifact has all")
    if not total:
        notes.append(f"its {FILE} is empty: set trajectories_kept in the recipe to more than 0")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with open(path, encoding="utf-8", errors="replace") as file:
        yield from enumerate(file)


def _spread(steps: list[int], share: float) -> set[int]:
    """About ``share`` of the steps, at least one, the first and the last among them where two fit."""
    count = min(len(steps), max(1, int(len(steps) * share)))
    if count <= 1:
        return set(steps[-1:])
    return {steps[round(place * (len(steps) - 1) / (count - 1))] for place in range(count)}


def _item(row: dict[str, Any], place: Callable[[int], int]) -> dict[str, Any]:
    segments = row["segments"]
    each = MOST_TOKENS // max(len(segments), 1)
    return {
        "step": int(row["step"]), "version": row.get("version"), "id": str(row["id"]),
        "group": str(row["group"]), "task": str(row["task"]), "mode": str(row["mode"]),
        "family": f"{row['environment']}/{row['family']}", "reward": _number(row["reward"]),
        "reason": str(row["reason"]), "seconds": _number(row["seconds"]),
        "rewards": [_number(value) for value in row.get("group_rewards") or []],
        "extra": {str(key): _number(value) for key, value in (row.get("extra") or {}).items()},
        "messages": [_message(message) for message in row["messages"]],
        "segments": [_segment(segment, each, place) for segment in segments],
        "known": all("turns" in s and {"advantage", "teacher_logprobs"} & s.keys() for s in segments),
    }  # fmt: skip


def _segment(segment: dict[str, Any], most: int, place: Callable[[int], int]) -> dict[str, Any]:
    """Its tokens in columns: log-probs, versions and advantages of the sampled ones alone."""
    whole, each = len(segment["ids"]), _advantages(segment)
    columns = [segment[name] for name in ("ids", "sampled", "logprobs", "versions")]
    tokens = list(zip(*columns, each, strict=True))
    shown = tokens if whole <= most else tokens[: most // 2] + tokens[whole - most // 2 :]
    sampled = [token for token in shown if token[1]]
    return {
        "tokens": [place(int(token[0])) for token in shown],
        "sampled": _runs([int(bool(token[1])) for token in shown]),
        "logprobs": [_number(token[2]) for token in sampled],
        "versions": _runs([int(token[3]) for token in sampled]),
        "advantages": _runs([_number(token[4]) for token in sampled]),
        "turns": [[str(t["kind"]), int(t["place"]), int(t["answer"])] for t in segment.get("turns", [])],
        "whole": whole,  # tokens, of which those after the first ``gap`` are left out until the last ones
        "all_sampled": sum(map(bool, segment["sampled"])),
        "gap": most // 2 if len(shown) < whole else None,
    }


def _advantages(segment: dict[str, Any]) -> list[float | None]:
    """Of each token. A teacher's is how much likelier it finds the token (paper section 3.5, equation 2)."""
    teacher, advantage = segment.get("teacher_logprobs"), segment.get("advantage")
    if teacher is not None:
        return [theirs - own for theirs, own in zip(teacher, segment["logprobs"], strict=True)]
    return advantage if isinstance(advantage, list) else [advantage] * len(segment["ids"])


def _runs(values: list[Any]) -> list[list[Any]]:
    """[value, how often] of equal neighbours."""
    return [[value, len(list(run))] for value, run in groupby(values)]


def _message(message: dict[str, Any]) -> dict[str, Any]:
    calls = [call.get("function") or call for call in message.get("tool_calls") or []]
    return {
        "role": str(message.get("role", "?")),
        "thinking": _text(message.get("reasoning_content")),
        "content": _text(message.get("content")),
        "calls": [{"name": str(c.get("name")), "arguments": _text(c.get("arguments"))} for c in calls],
    }


def _text(value: Any) -> str:
    """A text of a message, whatever it is, without its middle where it is long."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"


def _number(value: Any) -> float | None:
    """A finite number, short; None for anything else."""
    if value is None or not math.isfinite(value):
        return None
    return round(float(value), 4)
