"""What each stage cost: time, tokens, memory as measured, and the arithmetic that its tokens imply."""

from collections.abc import Callable
from typing import Any

from model.config import ModelConfig
from pipeline.recipe.model import ModelSection
from tasks.reporting.facts import Facts
from tasks.training.stages import RL_STAGES

SPARSE = "sparse"
# FLOPs of training on a token, from shape, length and the share of the tokens that pays for MTP.
PER_TOKEN: dict[str, Callable[[ModelConfig, int, float], float]] = {
    "pretrain": lambda shape, length, mtp: shape.training_flops_per_token(length, mtp=mtp),
    "midtrain": lambda shape, length, mtp: shape.training_flops_per_token(length, mtp=mtp),
    # In the warm-up the trunk runs forward alone.
    "dsa_warmup": lambda shape, length, mtp: shape.forward_flops_per_token(length, indexer=True),
    "dsa_adapt": lambda shape, length, mtp: shape.training_flops_per_token(length, SPARSE, mtp),
    "sft": lambda shape, length, mtp: shape.training_flops_per_token(length, SPARSE),
}


def costs(facts: Facts) -> list[dict[str, Any]]:
    """A row a finished stage."""
    shape = _shape(facts)
    return [_row(facts, name, shape) for name, stage in facts.stages.items() if stage.record]


def _row(facts: Facts, name: str, shape: ModelConfig | None) -> dict[str, Any]:
    stage = facts.stages[name]
    record = stage.record
    rates = [value for _, value in stage.curves.get("perf/tokens_per_s", [])]
    sampled = name in RL_STAGES
    return {
        "name": name,
        "seconds": record["seconds"],
        "tokens": stage.metrics.get("train/tokens") if sampled else record["facts"].get("tokens"),
        "sampled": sampled,
        "flops": flops(name, record, shape) if shape else None,
        "rate": sorted(rates)[len(rates) // 2] if rates else None,
        "memory": record["peak_memory_bytes"],
        "device": _devices(record["facts"]),
        "identity": record["identity"],
        "content": record["content"],
        "commit": record.get("git_commit") or "unknown",
        "bytes": sum(size for size, _ in record["files"].values()),
    }


def _devices(facts: dict[str, Any]) -> str:
    device, processes = facts.get("device", "cpu"), facts.get("processes", 1)
    return device if processes == 1 else f"{processes} x {device}"


def _shape(facts: Facts) -> ModelConfig | None:
    pretrain = facts.stages.get("pretrain")
    if pretrain is None or pretrain.record is None:
        return None
    return ModelSection(**pretrain.record["sections"]["model"]).config()


def flops(name: str, record: dict[str, Any], shape: ModelConfig) -> float | None:
    """FLOPs of a stage's tokens, computed from the model's shape as ``perf/mfu`` counts them.

    Of reinforcement learning: a forward pass when a token is sampled, and a training step on those that were
    learnt from, of which records from before they were counted have none. Prompts, and teachers' passes over
    them, come on top, so that it is a lower bound. None for stages that train nothing.
    """
    section = record["sections"].get(name) or {}
    if name in RL_STAGES:
        metrics, length = record["metrics"], section.get("sequence_length")
        sampled, learnt = metrics.get("train/tokens"), metrics.get("train/learnt_tokens", 0)
        if not sampled or not length:
            return None
        training = learnt * shape.training_flops_per_token(length, SPARSE)
        return sampled * shape.forward_flops_per_token(length, SPARSE) + training
    tokens = record["facts"].get("tokens")
    if name not in PER_TOKEN or not section or not tokens:
        return None
    phases = section.get("contexts") or [{**section, "tokens": tokens}]
    planned = sum(phase["tokens"] for phase in phases)
    mtp = 1 / section["mtp"]["every_steps"] if section.get("mtp") else 0.0
    return tokens * sum(
        PER_TOKEN[name](shape, phase["sequence_length"], mtp) * phase["tokens"] / planned for phase in phases
    )
