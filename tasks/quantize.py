"""Quantise the final checkpoint: 4-bit experts, 8-bit attention and dense layers (paper section 5).

    python -m tasks.quantize --recipe tiny

The artifact is a compressed-tensors folder: ``model.hub`` loads it to compute with integers, transformers to
compute with the same weights. ``w8a8/`` beside it is for a stock vLLM. calibration.json tells what the
quantiser saw and did, quantization.json what it cost, measured on what was written.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open

from model.chat.files import save_chat_files
from model.chat.tokenizer import Tokenizer
from model.hub import save_folder
from model.inference.weights import for_inference
from model.quantization.quantize import quantize_model
from model.quantization.scheme import Scheme
from model.quantization.size import stored_bytes
from model.transformer import Transformer
from pipeline.errors import UserError
from pipeline.recipe.quantization import QuantizeSection
from pipeline.stage import Context, run_stage
from tasks.quantization.comparison import Comparison
from tasks.quantization.rows import calibration_batches, chat_rows, heldout_rows, prompts_of
from tasks.training.ranks import pick_device
from tasks.training.setup import load_model

PARENT = "distill"


def run(context: Context) -> dict[str, float]:
    """Quantise, write, load what was written, and compare it with the float parent."""
    section: QuantizeSection = context.section
    parent, device = context.inputs[PARENT], pick_device()
    model, tokenizer = load_model(parent, device), Tokenizer.load(parent)
    chats = chat_rows(
        context.inputs["sft_data"] / "chats.jsonl", tokenizer, context.recipe.sft,
        section.heldout.chats, section.calibration.chats,
    )  # fmt: skip
    batches = calibration_batches(chats.calibration, context.inputs["pretrain_data"], section.calibration)
    batches = [batch.to(device) for batch in batches]
    schemes = schemes_of(section, context.seed)
    folders = {name: context.out / (name if number else "") for number, name in enumerate(schemes)}
    facts = {}
    for name, scheme in schemes.items():
        context.progress.update("quantise", len(facts), len(schemes), "model", f"{name}, {scheme.method}")
        # An export whose method looks at no tokens is spared them; the model itself has its record of them.
        seen = batches if scheme.needs_tokens or not facts else []
        facts[name] = write_quantized(model, seen, scheme, folders[name], parent)
    _write_json(context.out / "calibration.json", facts)
    documents = context.inputs["eval_sets"] / "heldout.parquet"
    comparison = Comparison(
        heldout_rows(chats.heldout, documents, tokenizer, section.heldout),
        prompts_of(chats.heldout, section.heldout.prompts),
        section.heldout.new_tokens,
    )
    rows = []
    for name, folder in {"float": parent, **folders}.items():
        context.progress.update("compare", len(rows), len(folders) + 1, "model", name)
        row = comparison.row(for_inference(load_model(folder, device)).eval())
        rows.append({"name": name, **row, **sizes(folder, parent, model, schemes.get(name))})
    _write_json(context.out / "quantization.json", rows)
    context.facts["loaded_by"] = {name: "model.hub, to compute with integers" for name in schemes}
    return metrics_of(rows, facts)


def schemes_of(section: QuantizeSection, seed: int) -> dict[str, Scheme]:
    """The model itself first, then the exports beside it, but none that it is already."""

    def scheme(method: str, expert_bits: int) -> Scheme:
        return Scheme(method, section.rotation, expert_bits, section.min_tokens, seed)

    own = {f"w{section.expert_bits}a8": scheme(section.method, section.expert_bits)}
    return own | {name: scheme(method, 8) for name, method in section.exports.items() if name not in own}


def write_quantized(
    model: Transformer, batches: list[torch.Tensor], scheme: Scheme, folder: Path, parent: Path
) -> dict:
    """Quantise a copy of ``model`` into a checkpoint folder; returns the quantiser's facts."""
    try:
        floats, tensors, facts = quantize_model(model, batches, scheme)
    except ValueError as error:
        raise UserError(f"{parent} cannot be quantised: {error}") from error
    folder.mkdir(exist_ok=True)
    save_folder(floats, folder, tensors)
    shutil.copyfile(parent / "tokenizer.json", folder / "tokenizer.json")
    save_chat_files(folder, model.config.max_positions)
    return facts


def sizes(folder: Path, parent: Path, model: Transformer, scheme: Scheme | None) -> dict[str, float]:
    """Bytes of a folder's tensors: on disk, as computed from the model's shape, and as shares of its parent's
    and of the parent's in bfloat16.
    """
    size, number = tensor_bytes(folder), model.embed.weight.element_size()
    return {
        "bytes": size,
        "computed_bytes": stored_bytes(model.config, scheme, float_bytes=number),
        "of_parent": size / tensor_bytes(parent),
        "of_bfloat16": size / stored_bytes(model.config),
    }


def tensor_bytes(folder: Path) -> int:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        tensors = (file.get_tensor(name) for name in file.keys())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def metrics_of(rows: list[dict], facts: dict[str, dict]) -> dict[str, float]:
    """``<measure>/<name>`` of every row, kurtosis of the inputs of all matrices before and after."""
    metrics = {
        f"{key}/{row['name']}": value
        for row in rows
        for key, value in row.items()
        if isinstance(value, float)
    }
    kurtosis = next(iter(facts.values()))["kurtosis"]
    return metrics | {f"kurtosis/{when}": sum(k.values()) / len(k) for when, k in kurtosis.items()}


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    run_stage("quantize", run)
