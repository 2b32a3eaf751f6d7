"""``glm5 status``: a line for each stage."""

import time

from pipeline import artifacts
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
    started, seconds = (status.record.get(key) for key in ("started", "seconds"))
    when = took = ""
    if started is not None and seconds is not None:
        ended = time.localtime(artifacts.ended(status.record))
        when, took = time.strftime("%m-%d %H:%M", ended), f"{seconds:.1f} s"
    numbers = {k: v for k, v in status.record.get("metrics", {}).items() if isinstance(v, int | float)}
    result = next((f"{name} {value:.4g}" for name, value in numbers.items()), "")
    return status.stage, status.state, when, took, result, status.reason
