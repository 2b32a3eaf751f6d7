"""The tasks for agents on the page: the funnel of candidates by family, and why some were rejected."""

from typing import Any

from tasks.reporting.facts import Facts


def agent_tasks(facts: Facts) -> dict[str, Any]:
    """Rows by family and reasons with an example each; empty where the stage has not run."""
    content = facts.json("agent_tasks", "funnel.json") or {}
    examples = content.get("examples", {})
    rows = content.get("rows", [])
    reasons = [
        {"reason": reason, "count": count, "example": next(iter(examples.get(reason, [])), None)}
        for reason, count in content.get("reasons", {}).items()
    ]
    return {
        "rows": rows,
        "reasons": reasons,
        "drafted": sum(row["drafted"] for row in rows),
        "kept": sum(row["kept"] for row in rows),
    }
