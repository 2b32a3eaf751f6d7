"""Policies without a model on the same suites: what each suite measures."""

from typing import Any

from tasks.reporting.scores import Scores


def scripts(scores: Scores) -> dict[str, Any]:
    """A row a line of the table that is a share, a value a policy."""
    names = list(dict.fromkeys(row["checkpoint"] for row in scores.scripted))
    found = {(row["checkpoint"], row["suite"], row["name"]): row for row in scores.scripted}
    rows = []
    for line in scores.lines():
        cells = [found.get((name, line.suite, line.name)) for name in names]
        if line.kind == "share" and any(cells):
            items = max(cell["n"] for cell in cells if cell)
            rows.append(
                {"label": line.label, "cells": [cell and cell["value"] for cell in cells], "n": items}
            )
    return {"names": names, "rows": rows}
