"""``glm5 status``: a line for each stage."""

import time

from pipeline.graph import load_graph
from pipeline.recipe import load_recipe
from pipeline.status import Status, status_of


def print_status(recipe: str) -> int:
    """Print the table. Returns 0 whatever the states are."""
    rows = [("stage", "state", "when", "took", "result", "why")]
    rows += [_row(status) for status in status_of(load_graph(), load_recipe(recipe))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _row(status: Status) -> tuple[str, ...]:
    if status.record is None:
        return status.stage, status.state, "", "", "", status.reason
    ended = status.record["started"] + status.record["seconds"]
    when = time.strftime("%m-%d %H:%M", time.localtime(ended))
    result = next((f"{name} {value:.4g}" for name, value in status.record["metrics"].items()), "")
    return status.stage, status.state, when, f"{status.record['seconds']:.1f} s", result, status.reason
