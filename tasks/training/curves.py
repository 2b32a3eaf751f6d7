"""The curves of a training run as a table, for ``dvc plots`` and the report."""

import csv
from pathlib import Path

from pipeline.tracking import read_metrics

CURVES = "curves.csv"


def write_curves(scratch: Path, folder: Path) -> None:
    """``metrics.jsonl`` of the run as ``curves.csv``, a row for each step."""
    rows: dict[int, dict] = {}
    for row in read_metrics(scratch):
        rows.setdefault(row["step"], {}).update(row)
    columns = ["step", *sorted({key for row in rows.values() for key in row} - {"step"})]
    with open(folder / CURVES, "w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows[step] for step in sorted(rows))
