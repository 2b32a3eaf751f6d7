"""MTP with one block for three steps, with a block for each of three steps, and with a single step, at tiny
size: the paper's claim that training the shared block for all steps makes longer drafts accepted (2.76
against 2.55).

    python -m benchmarks.ablate_mtp --recipe tiny --tokens 400000 --seeds 0 1 2 --processes 2 --threads 1

Every variant sees the same tokens in the same order. Then each drafts ``--draft-steps`` tokens behind its own
trunk's greedy continuations of held-out text; a draft counts as long as it is what the trunk says. The step
trained last is used for the steps behind it. Reads the recipe's ``pretrain_data`` artifact, prints a table
and writes ``benchmarks/results/ablate_mtp.json``. Nothing is claimed beforehand.
"""

import argparse
import json
import platform
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.plain_training import pretrain
from model.attention.mla import AttentionOptions
from model.chat.tokenizer import Tokenizer
from model.config import ModelConfig
from model.inference.engine import Engine
from model.inference.request import SamplingParams
from model.mtp import MTP, ahead
from model.transformer import Block, Transformer, initialise
from pipeline import artifacts
from pipeline.errors import run_command
from pipeline.recipe import Recipe, load_recipe
from tasks.training.batches import StreamBatches
from tasks.training.objective import LanguageObjective, token_bytes
from tasks.training.setup import spread

RESULT = Path("benchmarks/results/ablate_mtp.json")
VARIANTS = {"shared, 3 steps": (3, True), "unshared, 3 steps": (3, False), "single step": (1, True)}


class UnsharedTransformer(Transformer):
    """A block of its own for every MTP step; the last one also for the steps behind it."""

    def __init__(self, config: ModelConfig, *, seed: int = 0):
        super().__init__(config, seed=seed)
        others = range(config.mtp_steps - 1)
        self.later = nn.ModuleList(MTP(config, Block(config, config.num_layers)) for _ in others)
        initialise(self.later, config.init_std, seed + 1)
        self._loads = [0 for _ in others]

    def mtp_states(
        self, tokens_BT, hidden_BTD, *, steps, start_BT=None, attention="dense", indexer_loss=False
    ):
        """As ``Transformer.mtp_states``."""
        view = self._view(tokens_BT, start_BT)
        options = AttentionOptions(attention, self.config.index_top_k, indexer_loss)
        first_BT = view.start_BT == torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        states, signals = [], []
        for step in range(1, steps + 1):
            number = min(step - 1, len(self.later))
            block = self.later[number - 1] if number else self.mtp
            embedded = self.embed(ahead(tokens_BT, step, view.start_BT, fill=0))
            hidden_BTD, signal = block(hidden_BTD, embedded, first_BT, view, options)
            states.append(block.norm(hidden_BTD))
            signals.append(signal)
            if number:
                self._loads[number - 1] = self._loads[number - 1] + signal.router.load_E
        return states, signals

    def update_balance(self, load_LE, bias_step: float) -> None:
        """Every block by its own load; ``load_LE`` has the sum over all MTP steps in its last row."""
        load_LE = load_LE.clone()
        for block, load in zip(self.later, self._loads, strict=True):
            load_LE[-1] -= load
            block.block.ffn.router.update_bias(load, bias_step)
        self._loads = [0 for _ in self._loads]
        super().update_balance(load_LE, bias_step)


def main() -> None:
    options = parse()
    recipe = load_recipe(options.recipe)
    jobs = [(name, seed) for seed in options.seeds for name in VARIANTS]
    result = {
        "date": date.today().isoformat(), "machine": machine(options.device), "torch": torch.__version__,
        "recipe": options.recipe, "tokens": options.tokens, "draft_steps": options.draft_steps,
        "prompt": PROMPT, "new_tokens": NEW, "texts": options.rows, "rows": [],
    }  # fmt: skip
    # A process each: one run alone keeps neither many cores nor a GPU busy.
    with ProcessPoolExecutor(
        options.processes, get_context("spawn"), torch.set_num_threads, (options.threads,)
    ) as pool:
        runs = [pool.submit(run_one, recipe, *job, options) for job in jobs]
        for run in as_completed(runs):
            result["rows"].append(run.result())
            print(run.result(), flush=True)
            result["rows"].sort(key=lambda row: (list(VARIANTS).index(row["variant"]), row["seed"]))
            options.out.write_text(json.dumps(result, indent=2) + "\n")
    print_table(result["rows"])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="tiny")
    parser.add_argument("--tokens", type=int, default=400_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--draft-steps", type=int, default=3)
    parser.add_argument("--rows", type=int, default=64, help="held-out texts that are continued")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1, help="runs side by side")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of each run")
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser.parse_args()


def machine(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def run_one(recipe: Recipe, name: str, seed: int, options: argparse.Namespace) -> dict:
    """Train a variant and let it draft: a row of the result."""
    started = time.monotonic()
    steps, shared = VARIANTS[name]
    model, data = train_one(recipe, steps, shared, seed, options.tokens, torch.device(options.device))
    heldout = StreamBatches(data, recipe.pretrain.sequence_length, "validation.bin")
    texts = continuations(model, heldout, options.rows)
    return {
        "variant": name, "seed": seed, "accept_length": accept_length(model, texts, options.draft_steps),
        "validation_loss": validation_loss(model, heldout, options.rows),
        "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip


def train_one(
    recipe: Recipe, steps: int, shared: bool, seed: int, tokens: int, device: torch.device
) -> tuple[Transformer, Path]:
    """A model after ``tokens`` tokens of pre-training, every step with the MTP loss, and the data."""
    section = recipe.pretrain
    data, tokenizer = (artifacts.artifact_dir(recipe.name, stage) for stage in ("pretrain_data", "tokenizer"))
    artifacts.verify(data)
    config = recipe.model.config().model_copy(update={"mtp_steps": steps})
    model = (Transformer if shared else UnsharedTransformer)(config, seed=seed).to(device)
    mtp = section.mtp.model_copy(update={"every_steps": 1})
    objective = LanguageObjective(model, token_bytes(Tokenizer.load(tokenizer)), section.balance, mtp)
    pretrain(model, objective, section, data, seed, tokens)
    return model.eval(), data


@torch.inference_mode()
def validation_loss(model: Transformer, heldout: StreamBatches, count: int) -> float:
    """Nats a token of the trunk on held-out text: that the variants are alike in it."""
    batch = heldout.take(spread(heldout.rows, min(count, heldout.rows))).to(model.embed.weight.device)
    logits_BTV = model.logits(model(batch.tokens_BT).hidden_BTD)
    return float(F.cross_entropy(logits_BTV.flatten(0, 1), batch.target_BT.flatten()))


PROMPT, NEW = 32, 96  # tokens of held-out text, and of the trunk's continuation


def continuations(model: Transformer, heldout: StreamBatches, count: int) -> torch.Tensor:
    """(rows, PROMPT + NEW) held-out beginnings with the trunk's greedy continuations."""
    texts = heldout.take(spread(heldout.rows, min(count, heldout.rows))).tokens_BT[:, :PROMPT].tolist()
    completions = Engine(model).generate(texts, SamplingParams(NEW, 0.0))
    rows = [text + c.ids for text, c in zip(texts, completions, strict=True)]
    return torch.tensor(rows, device=model.embed.weight.device)


@torch.inference_mode()
def accept_length(model: Transformer, rows_BT: torch.Tensor, steps: int) -> float:
    """Tokens of a pass: those of the accepted drafts and the trunk's own, over the continuations.

    The training form of the chain drafts at every place at once: step k's state at t has read the tokens up
    to t + k, which are the drafts for as long as they were right.
    """
    states, _ = model.mtp_states(rows_BT, model(rows_BT).hidden_BTD, steps=steps)
    right = torch.zeros(steps, *rows_BT.shape, dtype=torch.bool, device=rows_BT.device)
    for k, state in enumerate(states, start=1):
        right[k - 1, :, : -k - 1] = model.logits(state[:, : -k - 1]).argmax(-1) == rows_BT[:, k + 1 :]
    kept_BT = right.long().cumprod(0).sum(0)
    passes = tokens = 0
    for kept in kept_BT.tolist():
        known = PROMPT
        while known + steps < len(kept):  # so that every pass has all its drafts
            new = kept[known - 2] + 1
            known, tokens, passes = known + new, tokens + new, passes + 1
    return tokens / passes


def print_table(rows: list[dict]) -> None:
    print(f"{'variant':20} {'accept length':>13} {'spread':>15}")
    for name in VARIANTS:
        lengths = [row["accept_length"] for row in rows if row["variant"] == name]
        print(f"{name:20} {statistics.fmean(lengths):13.3f} {min(lengths):7.3f} to {max(lengths):.3f}")


if __name__ == "__main__":
    run_command(main)
