"""The funnel of candidates: how many were drafted, kept, and rejected for which reason; no task twice."""

import re
from collections import Counter, defaultdict
from typing import Any

SHINGLE = 3  # words
NEAR = 0.95  # Jaccard index of two instructions of a family from which they count as the same
EXAMPLES = 3  # of each reason


class Funnel:
    """Counts by kind and family, with a few examples of each reason."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Counter] = defaultdict(Counter)
        self._reasons: dict[tuple[str, str], Counter] = defaultdict(Counter)
        self._examples: dict[str, list[dict[str, str]]] = defaultdict(list)

    def keep(self, kind: str, family: str) -> None:
        self._rows[kind, family]["kept"] += 1

    def reject(self, kind: str, family: str, name: str, reason: str, detail: str = "") -> None:
        """``reason`` is the same for the same kind of fault; ``detail`` is what was seen this time."""
        self._rows[kind, family]["rejected"] += 1
        self._reasons[kind, family][reason] += 1
        if len(self._examples[reason]) < EXAMPLES:
            self._examples[reason].append({"name": name, "detail": detail[:500]})

    def drop(self, kind: str, family: str, reason: str, count: int) -> None:
        """Count what was given up before it was a candidate."""
        self._rows[kind, family]["rejected"] += count
        self._reasons[kind, family][reason] += count

    def kept(self, kind: str | None = None) -> int:
        return sum(row["kept"] for (of, _), row in self._rows.items() if kind in (None, of))

    def rejected(self) -> int:
        return sum(row["rejected"] for row in self._rows.values())

    def to_json(self) -> dict[str, Any]:
        rows = [
            {
                "kind": kind, "family": family, "drafted": row["kept"] + row["rejected"], "kept": row["kept"],
                "rejected": dict(self._reasons[kind, family]),
            }
            for (kind, family), row in sorted(self._rows.items())
        ]  # fmt: skip
        reasons = Counter()
        for counted in self._reasons.values():
            reasons.update(counted)
        return {"rows": rows, "reasons": dict(reasons.most_common()), "examples": dict(self._examples)}


class Seen:
    """Finds what was there before: the same content, or nearly the same instruction within a family."""

    def __init__(self) -> None:
        self._contents: dict[str, str] = {}
        self._instructions: dict[str, dict[str, frozenset]] = defaultdict(dict)

    def find(self, family: str, instruction: str, digest: str) -> tuple[str, str] | None:
        """Reason and name of the earlier one, or None."""
        if digest in self._contents:
            return "the same task again", self._contents[digest]
        words = shingles(instruction)
        for name, others in self._instructions[family].items():
            if similarity(words, others) >= NEAR:
                return "nearly the same instruction", name
        return None

    def add(self, family: str, name: str, instruction: str, digest: str) -> None:
        self._contents[digest] = name
        self._instructions[family][name] = shingles(instruction)


def shingles(text: str) -> frozenset:
    """All runs of three words, whatever their case; paths, numbers and quoted lines count as words."""
    words = re.findall(r"[^\s.,;:()`]+", text.lower())
    return frozenset(zip(*(words[start:] for start in range(SHINGLE)), strict=False))


def similarity(one: frozenset, other: frozenset) -> float:
    """Jaccard index; two texts without any run are the same."""
    return len(one & other) / len(one | other) if one or other else 1.0
