"""What the run was made with: packages, host, commits, seed."""

from typing import Any

from tasks.reporting.facts import Facts


def versions(facts: Facts) -> dict[str, Any]:
    """Packages and host, from the newest record; records that differ from it are named."""
    records = [stage.record for stage in facts.stages.values() if stage.record]
    if not records:
        return {}
    newest = max(records, key=lambda record: record["started"])
    differing = sorted(
        record["stage"]
        for record in records
        if record["packages"] != newest["packages"] or record["host"] != newest["host"]
    )
    return {
        "python": newest["python"],
        "packages": newest["packages"],
        "host": newest["host"],
        "commits": list(dict.fromkeys(r.get("git_commit") or "unknown" for r in records)),
        "seed": next((r["seed"] for r in records if r["stage"] == "pretrain"), newest["seed"]),
        "differing": differing,
    }
