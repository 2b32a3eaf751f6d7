"""The ablation of quantisation: float, W8A8 and W4A8 by every method, with and without rotation.

    python -m benchmarks.quantization --recipe tiny --checkpoint artifacts/tiny/distill
    python -m benchmarks.quantization --recipe small --checkpoint artifacts/small/sft --device cuda

Calibrates on chats and pre-training text of the recipe's artifacts and compares on held-out rows of both, as
stage ``quantize`` does, with real integer arithmetic (on CUDA beside bfloat16). Everything is done twice: on
the checkpoint as it is, and with outliers put in, since small models have few (``--share`` of the features of
every norm, of the attention's values and of what the down projections read are ``--outliers`` times as large;
the float function stays the same). Writes ``<out>.json`` and ``<out>.md``. A change is that of the
perplexity, with a paired 95 % interval over the rows; "kl" is the mean divergence of the next token's
distribution from the float model's on those rows, in nats.
"""

import argparse
import copy
import json
import math
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from benchmarks.output import require_place
from model.chat.tokenizer import Tokenizer
from model.inference.server.loading import usable_device
from model.inference.weights import for_inference
from model.quantization.calibration import measure_kurtosis
from model.quantization.layers import install, is_quantized
from model.quantization.outliers import Outliers, inject
from model.quantization.quantize import quantize_model
from model.quantization.scheme import Scheme
from model.transformer import Transformer
from pipeline import artifacts
from pipeline.errors import UserError, run_command
from pipeline.recipe import load_recipe
from pipeline.recipe.quantization import Calibration, HeldOut
from tasks.quantization.comparison import Comparison
from tasks.quantization.rows import calibration_batches, chat_rows, heldout_rows, prompts_of
from tasks.training.setup import load_model

RESULT = Path("benchmarks/results/quantization")
METHODS_OF_8 = ("minmax", "flex_awq_ssz")
METHODS = ("minmax", "ssz", "awq", "flex_awq_ssz", "gptq")
NEEDED = {"sft_data": "chats.jsonl", "pretrain_data": "meta.json", "eval_sets": "heldout.parquet"}
# Kinds of matrices that a rotation's effect reaches: what they read is a norm's output.
ROTATED = ("attention.q_down", "attention.kv_down", "attention.q_up", "ffn.gate_up", "ffn.shared.gate_up")
KEPT = ("kurtosis", "pooled", "rounded_to_nearest")  # of the quantiser's facts
COLUMNS = (
    "perplexity_chat", "perplexity_chat_change", "perplexity_text", "perplexity_text_change",
    "kl", "kurtosis_rotated", "kurtosis_all", "topk_overlap", "router_agreement", "accept_length",
)  # fmt: skip


def main() -> None:
    options = parse()
    recipe = load_recipe(options.recipe)
    calibration, heldout = sections(options)
    outliers = outliers_of(options)
    for ending in (".json", ".md"):
        require_place(options.out.with_suffix(ending))
    inputs = inputs_of(recipe.name)
    model, tokenizer = float_model(options.checkpoint, options.device)
    chats = chat_rows(
        inputs["sft_data"] / "chats.jsonl", tokenizer, recipe.sft, heldout.chats, calibration.chats
    )
    batches = calibration_batches(chats.calibration, inputs["pretrain_data"], calibration)
    batches = [batch.to(options.device) for batch in batches]
    rows = heldout_rows(chats.heldout, inputs["eval_sets"] / "heldout.parquet", tokenizer, heldout)
    rows = {name: rows[name] for name in options.groups}
    prompts = prompts_of(chats.heldout, heldout.prompts)
    result = {
        "date": date.today().isoformat(), "machine": machine(options.device), "torch": torch.__version__,
        "checkpoint": options.checkpoint.name, "dtype": str(model.embed.weight.dtype),
        "options": {key: value for key, value in vars(options).items() if not isinstance(value, Path)},
        "calibration_tokens": sum(batch.numel() for batch in batches), "outliers": asdict(outliers),
        "heldout_tokens": {name: sum(len(row.ids) for row in group) for name, group in rows.items()},
        "rows": [],
    }  # fmt: skip
    for label in options.models:
        subject = copy.deepcopy(model)
        if label == "outliers":
            inject(subject, outliers)
        comparison = Comparison(rows, prompts, heldout.new_tokens)
        schemes = list(variants(options.methods, options.min_tokens))
        for row in ablate(subject, batches, comparison, schemes):
            result["rows"].append({"model": label, **row})
            print(line(result["rows"][-1]), flush=True)
            options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    result["claims"] = {label: claims(result["rows"], label) for label in options.models}
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(markdown(result))
    print(json.dumps(result["claims"], indent=1))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="tiny", help="whose data artifacts are read")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="+", choices=("plain", "outliers"), default=["plain", "outliers"])
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=METHODS, help="fewer, to share them out among runs"
    )
    parser.add_argument("--outliers", type=float, default=Outliers.factor, help="their factor")
    parser.add_argument("--share", type=float, default=Outliers.share, help="of the features")
    parser.add_argument("--chats", type=int, default=24, help="to calibrate on")
    parser.add_argument("--documents", type=int, default=8, help="windows of text to calibrate on")
    parser.add_argument("--length", type=int, default=128, help="tokens of a row")
    parser.add_argument("--rows", type=int, default=48, help="chats, and documents, to compare on")
    parser.add_argument(
        "--groups", nargs="+", choices=("chat", "text"), default=["chat", "text"],
        help="to compare on: chat for a fine-tuned model, which may have forgotten text, text for others",
    )  # fmt: skip
    parser.add_argument("--prompts", type=int, default=8, help="to continue with drafts")
    parser.add_argument("--min-tokens", type=int, default=Scheme.min_tokens)
    parser.add_argument("--out", type=Path, default=RESULT, help="without ending")
    return parser.parse_args()


def sections(options: argparse.Namespace) -> tuple[Calibration, HeldOut]:
    """What the recipe's section would say. Raises ``UserError`` for a number outside of its bounds."""
    try:
        calibration = Calibration(chats=options.chats, documents=options.documents, length=options.length)
        heldout = HeldOut(
            chats=options.rows, documents=options.rows, length=options.length, prompts=options.prompts
        )
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        option = "rows" if error.title == "HeldOut" and field in ("chats", "documents") else field
        bound = first["msg"].removeprefix("Input ")
        raise UserError(f"--{option} {first['input']} is out of bounds: it {bound}") from error
    return calibration, heldout


def outliers_of(options: argparse.Namespace) -> Outliers:
    if not 0 < options.share <= 1:
        raise UserError(f"--share {options.share} is no share of the features: say more than 0, at most 1")
    if not (options.outliers > 0 and math.isfinite(options.outliers)):
        raise UserError(f"--outliers {options.outliers} is no factor: say a positive number")
    return Outliers(factor=options.outliers, share=options.share)


def inputs_of(recipe: str) -> dict[str, Path]:
    inputs = {name: artifacts.artifact_dir(recipe, name) for name in NEEDED}
    for name, file in NEEDED.items():
        if not (inputs[name] / file).exists():
            raise UserError(f"{inputs[name] / file} is missing: run stage {name} of the recipe first")
    return inputs


def float_model(checkpoint: Path, device: str) -> tuple[Transformer, Tokenizer]:
    """Raises ``UserError`` for a checkpoint that cannot be loaded, or is quantised."""
    try:
        model = load_model(checkpoint, usable_device(device)).eval()
        if is_quantized(model):
            raise UserError(f"{checkpoint} is quantised: give --checkpoint the float one that it comes from")
        return model, Tokenizer.load(checkpoint)
    except ValueError as error:
        raise UserError(str(error)) from error


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """What the quantiser says of a model or of tokens that it refuses."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"the checkpoint cannot be quantised: {error}") from error


def machine(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def variants(methods: Sequence[str], min_tokens: int) -> Iterator[tuple[str, Scheme]]:
    for name, bits, known in (("W8A8", 8, METHODS_OF_8), ("W4A8", 4, METHODS)):
        for method in (method for method in known if method in methods):
            for rotation in (False, True):
                yield name, Scheme(method, rotation, bits, min_tokens)


def ablate(
    model: Transformer,
    batches: list[torch.Tensor],
    comparison: Comparison,
    schemes: Sequence[tuple[str, Scheme]],
) -> Iterator[dict[str, Any]]:
    """A row for the float model and one for each variant. Raises ``UserError`` for what is refused."""
    with in_one_sentence():
        kurtosis = summary(measure_kurtosis(model, batches))
    yield {"name": "float", **comparison.row(for_inference(copy.deepcopy(model))), **kurtosis}
    for name, scheme in schemes:
        start = time.perf_counter()
        with in_one_sentence():
            floats, tensors, facts = quantize_model(model, batches, scheme)
        seconds = time.perf_counter() - start
        install(floats, tensors)
        yield {
            "name": name, "method": scheme.method, "rotation": scheme.rotation,
            **comparison.row(for_inference(floats)), **summary(facts["kurtosis"]["after"]),
            "quantize_seconds": seconds, **{key: facts[key] for key in KEPT},
        }  # fmt: skip


def summary(kurtosis: dict[str, float]) -> dict[str, float]:
    """Means over kinds of matrices: of those that read a norm, and of all."""
    rotated = [value for kind, value in kurtosis.items() if kind in ROTATED]
    return {
        "kurtosis_rotated": sum(rotated) / len(rotated),
        "kurtosis_all": sum(kurtosis.values()) / len(kurtosis),
    }


def claims(rows: list[dict], label: str) -> dict[str, Any]:
    """Of rotated flex AWQ-SSZ and of W8A8 the change in percent, and which W4A8 variants are no worse;
    nothing where it did not run.
    """
    own = [row for row in rows if row["model"] == label and row["name"] != "float"]
    four = [row for row in own if row["name"] == "W4A8"]
    final = next((row for row in four if row["method"] == "flex_awq_ssz" and row["rotation"]), None)
    if final is None:
        return {}
    others = [row for row in four if row is not final]
    result = {}
    changes = [key for key in final if key.startswith("perplexity_") and key.endswith("_change")]
    for key in changes:
        result[key] = {
            "w8a8_percent": {label_of(row): 100 * row[key] for row in own if row["name"] == "W8A8"},
            "w4a8_percent": 100 * final[key],
        }
    for key in ("kl", *changes):
        better = [label_of(row) for row in others if row[key] <= final[key]]
        result[f"no_worse_by_{key}"] = better
    return result


def label_of(row: dict[str, Any]) -> str:
    return row["method"] + (" rotated" if row["rotation"] else "")


def line(row: dict[str, Any], columns: Sequence[str] = COLUMNS) -> str:
    cells = [row["model"], row["name"], row.get("method", ""), "rotated" if row.get("rotation") else ""]
    return " | ".join([*cells, *(shown(row, column) for column in columns)])


def shown(row: dict[str, Any], column: str) -> str:
    if column not in row:
        return ""
    if not column.endswith("_change"):
        return f"{row[column]:.4g}"
    low, high = row[column.replace("_change", "_interval")]
    return f"{100 * row[column]:+.2f} % [{100 * low:+.2f}, {100 * high:+.2f}]"


def markdown(result: dict[str, Any]) -> str:
    columns = [column for column in COLUMNS if any(column in row for row in result["rows"])]
    names = ["model", "bits", "method", "rotation", *(column.replace("_", " ") for column in columns)]
    head = (
        f"{result['checkpoint']}, {result['dtype']}, {result['machine']}, torch {result['torch']}, "
        f"{result['date']}; calibrated on {result['calibration_tokens']} tokens, compared on "
        f"{result['heldout_tokens']}; outliers: {result['outliers']}.\n\n"
    )
    table = [names, ["---"] * len(names)]
    lines = ["| " + " | ".join(cells) + " |" for cells in table]
    return head + "\n".join([*lines, *(f"| {line(row, columns)} |" for row in result["rows"])]) + "\n"


if __name__ == "__main__":
    run_command(main)
