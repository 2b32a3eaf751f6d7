"""What a recipe means before anything is allocated: the resolved values and a table derived from them."""

import math
from dataclasses import dataclass

import yaml

from model.config import ModelConfig
from pipeline.recipe.load import Recipe
from pipeline.recipe.rollouts import derive_rollouts, describe_rollouts
from pipeline.recipe.training import TrainSection

# FLOP/s that training sustains on one device. CPU: about 9,000 tokens/s of the tiny model on two
# cores. GPUs: dense bf16 peak times 0.4, an assumption.
SUSTAINED = {"cpu": 6e10, "h100": 0.4 * 989e12, "h200": 0.4 * 989e12}
BYTES_PER_PARAMETER = 16  # fp32 weight, gradient and, at most (AdamW), two moments; Muon needs 12
ACTIVATIONS_PER_LAYER = 40  # hidden vectors kept for the backward pass, per token: an estimate


@dataclass(frozen=True)
class Row:
    """One training phase. ``hours``: a device works on whole micro-batches, so not all devices are always
    busy. ``memory_gib``: one device with its micro-batch and all weights and state, as the loop has it.
    """

    phase: str
    sequence_length: int
    tokens: int
    tokens_per_step: int
    steps: int
    flops_per_token: float
    hours: float
    memory_gib: float


def default_device(recipe: Recipe) -> tuple[str, int]:
    """Device and count that a preset is made for."""
    return {"tiny": ("cpu", 1), "small": ("h100", 1), "node": ("h100", 8), "glm5": ("h100", 2048)}[
        recipe.model.preset
    ]


def derive(recipe: Recipe, device: str, devices: int) -> list[Row]:
    """A row for each training phase whose tokens the recipe fixes (``sft`` counts chats instead)."""
    config = recipe.model.config()
    rows = []
    for name, attention in (
        ("pretrain", "dense"),
        ("midtrain", "dense"),
        ("dsa_warmup", "dense"),
        ("dsa_adapt", "sparse"),
    ):
        section = getattr(recipe, name)
        for phase in section.phases:
            length, tokens = phase.sequence_length, phase.tokens
            rows.append(_row(name, section, config, length, tokens, attention, device, devices))
    return rows


def describe(recipe: Recipe, device: str, devices: int) -> str:
    """The resolved recipe as YAML, then the derived tables."""
    config = recipe.model.config()
    counts = config.parameter_counts()
    resolved = {**recipe.model_dump(mode="json"), "model": config.model_dump(mode="json")}
    lines = [yaml.safe_dump(resolved, sort_keys=False, width=100), "# derived"]
    lines.append(
        f"parameters  {counts['total']:,} in all, {counts['active']:,} active per token, "
        f"{counts['embedding']:,} of the embedding, {counts['mtp']:,} of the MTP block on top"
    )
    lines.append(
        f"device      {devices} x {device}, {SUSTAINED[device] / 1e12:g} TFLOP/s sustained on each (assumed)"
    )
    lines += _table(derive(recipe, device, devices))
    lines.append(f"sft         {recipe.sft_data.chats:,} chats, {recipe.sft.epochs:g} epochs, "
                 f"{recipe.sft.global_batch_tokens:,} tokens a step")  # fmt: skip
    lines += _rollouts(recipe)
    return "\n".join(lines)


def _row(
    name: str, section: TrainSection, config: ModelConfig, length: int, tokens: int, attention: str,
    device: str, devices: int,
) -> Row:  # fmt: skip
    mtp = 1 / section.mtp.every_steps if hasattr(section, "mtp") else 0.0
    if name == "dsa_warmup":  # the trunk runs forward alone; only the indexer has a backward pass
        indexer = 2 * config.parameter_counts()["indexer"]
        flops = config.forward_flops_per_token(length, "dense", indexer=True) + 2 * indexer
    else:
        flops = config.training_flops_per_token(length, attention, mtp)
    micro_batches = section.micro_batches(length)
    speed = SUSTAINED[device] * micro_batches / math.ceil(micro_batches / devices)
    hours = tokens * flops / speed / 3600
    steps = max(tokens // section.global_batch_tokens, 1)
    memory = _memory(config, section.micro_batch * length)
    return Row(name, length, tokens, section.global_batch_tokens, steps, flops, hours, memory)


def _memory(config: ModelConfig, tokens: int) -> float:
    counts = config.parameter_counts()
    state = BYTES_PER_PARAMETER * (counts["total"] + counts["mtp"])
    layers = config.num_layers + (config.mtp_steps if config.mtp_steps else 0)
    activations = 4 * tokens * config.hidden_size * ACTIVATIONS_PER_LAYER * layers
    logits = 2 * 4 * tokens * config.vocab_size
    return (state + activations + logits) / 2**30


def _table(rows: list[Row]) -> list[str]:
    head = ("phase", "length", "tokens", "tokens/step", "steps", "FLOPs/token", "hours", "GiB/device")
    return _aligned([head] + [
        (row.phase, f"{row.sequence_length:,}", f"{row.tokens:,}", f"{row.tokens_per_step:,}",
         f"{row.steps:,}", f"{row.flops_per_token:.3g}", f"{row.hours:.3g}", f"{row.memory_gib:.3g}")
        for row in rows
    ])  # fmt: skip


def _rollouts(recipe: Recipe) -> list[str]:
    head = ("phase", "steps", "rollouts/step", "turns", "sampled/step", "trained/step", "FLOPs sampling",
            "FLOPs training", "engines", "processes", "GiB cache")  # fmt: skip
    table = _aligned([head] + [
        (row.phase, f"{row.steps:,}", f"{row.rollouts:,}", f"{row.turns:,}", f"{row.sampled_tokens:,}",
         f"{row.trained_tokens:,}", f"{row.sampling_flops:.3g}", f"{row.training_flops:.3g}",
         f"{row.engines:,}", f"{row.processes:,}", f"{row.cache_bytes / 2**30:.3g}")
        for row in derive_rollouts(recipe)
    ])  # fmt: skip
    return [
        "reinforcement learning: tokens and FLOPs are upper bounds, all turns taken to their last token "
        "and rows of training filled by prompts and replies; FLOPs are of all steps, the cache of an engine",
        *table,
        *describe_rollouts(recipe),
    ]


def _aligned(cells: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return ["  ".join(map(str.rjust, row, widths)) for row in cells]
