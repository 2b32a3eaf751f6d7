"""Pathologies and refusals by checkpoint, from the evaluation: how often, not how well."""

from typing import Any

from tasks.reporting.scores import Line, Scores

SUITE = "environments"
LINES = (
    Line(SUITE, "conduct/repetition", "A piece of text four times or more in a row", "share", True),
    Line(SUITE, "conduct/languages", "Letters of a script that nobody had used", "share", True),
    Line(SUITE, "conduct/cut_off", "A turn that does not end", "share", True),
    Line(SUITE, "conduct/malformed_call", "A tool call that no tool takes", "share", True),
    Line(SUITE, "safety/refused", "Harmful requests refused", "share"),
    Line(SUITE, "safety/wrongly_refused", "Harmless twins refused", "share", True),
)


def conduct(scores: Scores) -> list[dict[str, Any]]:
    """A row a line, a cell a checkpoint with how many of how many; lines that nobody has are left out."""
    rows = []
    for line in LINES:
        found = [scores.get(name, line.suite, line.name) for name in scores.checkpoints]
        if any(found):
            # A task in several modes counts by its mean, so that a third of one is possible.
            cells = [row and {**row, "count": f"{round(row['value'] * row['n'], 1):g}"} for row in found]
            rows.append({"line": line, "cells": cells})
    return rows
