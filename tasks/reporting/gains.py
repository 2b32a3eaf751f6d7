"""What each stage gained and forgot: differences on the same items, and whether they are more than chance."""

from typing import Any

from tasks.reporting.scores import Line, Scores

FAMILY = "exact/all/"
WORDS = {"better": "gained", "worse": "forgot", "even": "not significant"}


def gains(scores: Scores) -> list[dict[str, Any]]:
    """An entry a checkpoint that was compared with the one before it.

    ``rows``: the lines of the table that moved at all, with the values of both; ``gained`` and ``forgot``:
    families whose interval leaves no doubt; ``unclear``: how many moved less, ``equal`` how many not at all.
    """
    quantised = {row["after"] for row in scores.beside_parent}  # have a section of their own
    wanted = [name for name in scores.checkpoints if name not in quantised]
    pairs = dict.fromkeys((c["before"], c["after"]) for c in scores.changes if c["after"] in wanted)
    return [_stage(scores, before, after) for before, after in pairs]


def _stage(scores: Scores, before: str, after: str) -> dict[str, Any]:
    changes = [c for c in scores.changes if (c["before"], c["after"]) == (before, after)]
    families = [c for c in changes if c["suite"] == "environments" and c["name"].startswith(FAMILY)]
    judged = [(c["name"].removeprefix(FAMILY), c, verdict(c, False)) for c in families]
    judged.sort(key=lambda item: (-abs(item[1]["change"]), item[0]))
    return {
        "before": before, "after": after, "rows": moved(scores, changes),
        "gained": [(name, c) for name, c, word in judged if word == "better"],
        "forgot": [(name, c) for name, c, word in judged if word == "worse"],
        "unclear": sum(word == "even" and bool(c["change"]) for _, c, word in judged),
        "equal": sum(not c["change"] for c in families), "families": len(families),
    }  # fmt: skip


def moved(scores: Scores, changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the differences between two checkpoints the table's lines that are not 0, with both values."""
    by_key = {(change["suite"], change["name"]): change for change in changes}
    rows = []
    for line in scores.lines():
        change = by_key.get((line.suite, line.name))
        if change and change["change"] and not line.control:
            values = [scores.get(change[side], line.suite, line.name) for side in ("before", "after")]
            if all(values):
                word = verdict(change, line.lower_is_better)
                rows.append({"line": line, **change, "from": values[0], "to": values[1], "verdict": word})
    return rows


def verdict(change: dict[str, Any], lower_is_better: bool) -> str:
    """``better`` or ``worse`` where the interval leaves no doubt about the sign, else ``even``."""
    if change["low"] is None or change["high"] is None or change["low"] <= 0 <= change["high"]:
        return "even"
    return "better" if (change["change"] < 0) == lower_is_better else "worse"


def difference(value: float, line: Line) -> str:
    """A difference with its sign and unit; one that is not 0 is not shown as 0."""
    if line.kind == "share":
        digits = 1 if value == 0 or abs(value) >= 5e-4 else 3
        return f"{100 * value:+.{digits}f} points"
    return f"{100 * value:+.2f} points" if line.kind == "gap" else f"{value:+.3f}"
