"""GQA, MLA and MLA with Muon Split at tiny size: the paper's Table 1 question, with its spread over seeds.

    python -m benchmarks.ablate_attention --recipe tiny --tokens 400000 --seeds 0 1 2

Every variant sees the same tokens in the same order. Reads the recipe's ``pretrain_data`` artifact, prints a
table and writes ``benchmarks/results/ablate_attention.json``. Nothing is claimed beforehand.
"""

import argparse
import json
import platform
import statistics
import time
from datetime import date
from pathlib import Path

import torch

from benchmarks.gqa import GQA
from benchmarks.plain_training import pretrain
from model.chat.tokenizer import Tokenizer
from model.transformer import Transformer, initialise
from pipeline import artifacts
from pipeline.errors import run_command
from pipeline.recipe import Recipe, load_recipe
from tasks.training.batches import StreamBatches
from tasks.training.objective import LanguageObjective, token_bytes
from tasks.training.setup import validation_batches

RESULT = Path("benchmarks/results/ablate_attention.json")
VARIANTS = {"GQA": (True, False), "MLA": (False, False), "MLA + Muon Split": (False, True)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="tiny")
    parser.add_argument("--tokens", type=int, default=400_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    recipe = load_recipe(arguments.recipe)
    rows = []
    for name, (grouped, split) in VARIANTS.items():
        for seed in arguments.seeds:
            row = {"variant": name, "seed": seed} | train_one(recipe, grouped, split, seed, arguments.tokens)
            print(row, flush=True)
            rows.append(row)
    result = {
        "date": date.today().isoformat(), "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__, "tokens": arguments.tokens, "rows": rows,
    }  # fmt: skip
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print_table(rows)


def train_one(recipe: Recipe, grouped: bool, split: bool, seed: int, tokens: int) -> dict[str, float]:
    """Validation bits per byte after ``tokens`` tokens of plain next-token training."""
    section = recipe.pretrain
    data, tokenizer = (artifacts.artifact_dir(recipe.name, stage) for stage in ("pretrain_data", "tokenizer"))
    artifacts.verify(data)
    model = Transformer(recipe.model.config().model_copy(update={"mtp_steps": 0}), seed=seed)
    if grouped:
        for number, block in enumerate(model.blocks):
            block.attention = GQA(model.config)
            initialise(block.attention, model.config.init_std, seed + number)
    objective = LanguageObjective(model, token_bytes(Tokenizer.load(tokenizer)), section.balance)
    section = section.model_copy(
        update={"optimizer": section.optimizer.model_copy(update={"muon_split": split})}
    )
    started = time.perf_counter()
    steps = pretrain(model, objective, section, data, seed, tokens)
    seconds = time.perf_counter() - started
    heldout = StreamBatches(data, section.sequence_length, "validation.bin")
    model.eval()
    with torch.no_grad():
        scores = [
            float(objective.validate(batch)[1]["val/bpb"]) for batch in validation_batches(heldout, 64, 8)
        ]
    return {
        "val_bpb": statistics.fmean(scores),
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_per_s": steps * section.global_batch_tokens / seconds,
    }


def print_table(rows: list[dict]) -> None:
    print(f"{'variant':18} {'parameters':>10} {'val bpb':>8} {'spread':>15} {'tok/s':>7}")
    for name in VARIANTS:
        own = [row for row in rows if row["variant"] == name]
        bpb = [row["val_bpb"] for row in own]
        speed = statistics.fmean(row["tokens_per_s"] for row in own)
        spread = f"{min(bpb):.3f} to {max(bpb):.3f}"
        print(f"{name:18} {own[0]['parameters']:10} {statistics.fmean(bpb):8.3f} {spread:>15} {speed:7.0f}")


if __name__ == "__main__":
    run_command(main)
