"""The corpus for the page: sources with their licences, and the funnel of what curation kept."""

from typing import Any

from tasks.reporting.facts import Facts

LICENCES = 3  # named a source
SAMPLES_PER_REASON = 2
ROWS = 9  # reasons with a bar of their own


def corpus(facts: Facts) -> list[dict[str, Any]]:
    """A row a source: documents, characters, licences by share, packages."""
    content = facts.json("collect", "sources.json") or {}
    rows = []
    for source in content.get("sources", []):
        total = source["characters"] or 1
        licences = sorted(source["characters_by_licence"].items(), key=lambda item: -item[1])
        kinds = source.get("characters_by_kind", {})
        rows.append(
            {
                "name": source["name"],
                "kind": source["kind"].replace("_", " "),
                "documents": source["documents"],
                "characters": source["characters"],
                "packages": source.get("packages"),
                "licences": [(name, part / total) for name, part in licences[:LICENCES]],
                "more_licences": max(0, len(licences) - LICENCES),
                "code": kinds.get("code", 0) / total,
            }
        )
    return rows


def funnel(facts: Facts) -> dict[str, Any]:
    """Kept and dropped characters by reason, with bars as shares of all, and samples of the dropped."""
    content = facts.json("curate", "funnel.json") or {}
    totals: dict[str, dict[str, Any]] = {}
    for row in content.get("rows", []):
        entry = totals.setdefault(row["reason"], {"reason": row["reason"], "documents": 0, "characters": 0})
        entry["documents"] += row["documents"]
        entry["characters"] += row["characters"]
    whole = sum(entry["characters"] for entry in totals.values()) or 1
    documents = sum(entry["documents"] for entry in totals.values())
    left = 100.0
    rows = []
    for entry in _largest([entry for entry in totals.values() if entry["reason"] != "kept"]):
        width = 100 * entry["characters"] / whole
        rows.append({**entry, "share": width / 100, "left": left - width, "width": max(width, 0.3)})
        left -= width
    return {
        "rows": rows,
        "kept": totals.get("kept", {"documents": 0, "characters": 0}),
        "kept_share": left / 100,
        "documents": documents,
        "characters": whole,
        "samples": _samples(content.get("samples", [])),
    }


def _largest(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The reasons that took most, and the others as one."""
    ordered = sorted(entries, key=lambda entry: -entry["characters"])
    if len(ordered) <= ROWS + 1:
        return ordered
    rest = ordered[ROWS:]
    other = {key: sum(entry[key] for entry in rest) for key in ("documents", "characters")}
    return [*ordered[:ROWS], {"reason": f"{len(rest)} other reasons", **other}]


def _samples(samples: Any) -> list[dict[str, Any]]:
    """A few dropped documents a reason, whatever their order in the file."""
    kept: dict[str, list[dict]] = {}
    for sample in samples:
        group = kept.setdefault(sample["reason"], [])
        if len(group) < SAMPLES_PER_REASON:
            group.append(sample)
    return [{"reason": reason, "samples": group} for reason, group in kept.items()]
