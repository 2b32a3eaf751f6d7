"""What a training stage leaves: a Hugging Face folder, and the curves of its run."""

import csv
import shutil
from pathlib import Path

from model.chat.files import save_chat_files
from model.hub import save_folder
from model.transformer import Transformer
from pipeline.stage import Context
from pipeline.tracking import read_metrics

CURVES = "curves.csv"


def write_checkpoint(context: Context, model: Transformer, tokenizer_folder: Path) -> None:
    """Weights, config, tokenizer and chat template: a folder that transformers opens by itself."""
    save_folder(model, context.out)
    shutil.copyfile(tokenizer_folder / "tokenizer.json", context.out / "tokenizer.json")
    save_chat_files(context.out, model.config.max_positions)
    write_curves(context)


def write_curves(context: Context) -> None:
    """``metrics.jsonl`` as a table with a row for each step, for ``dvc plots`` and the report."""
    rows: dict[int, dict] = {}
    for row in read_metrics(context.scratch):
        rows.setdefault(row["step"], {}).update(row)
    columns = ["step", *sorted({key for row in rows.values() for key in row} - {"step"})]
    with open(context.out / CURVES, "w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows[step] for step in sorted(rows))
