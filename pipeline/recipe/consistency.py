"""Do the values of a recipe fit one another? Asked when it is loaded, not hours later in a stage.

More training tokens than ``pretrain_data`` or ``midtrain_data`` hold are no fault: the loop repeats them.
"""

import difflib
import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.recipe.quantization import QuantizeSection
from pipeline.recipe.rl import RlSection
from pipeline.recipe.training import TrainSection

if TYPE_CHECKING:
    from pipeline.recipe.load import Recipe


def faults(recipe: "Recipe") -> list[str]:
    """A sentence for each group of values that cannot work together."""
    checks = (_mix, _weights, _vocabulary, _contexts, _positions, _batches, _checkpoints, _rl_families)
    return [fault for check in checks for fault in check(recipe)]


def _mix(recipe: "Recipe") -> Iterator[str]:
    sources = [source.name for source in recipe.collect.sources]
    for name in recipe.pretrain_data.mix:
        if name not in sources:
            nearest = difflib.get_close_matches(name, sources, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"its sources are {', '.join(sources)}"
            yield f"pretrain_data.mix names {name!r}, which collect.sources does not have: {hint}"


def _weights(recipe: "Recipe") -> Iterator[str]:
    shares = recipe.midtrain_data.model_dump(include={"repository", "long_documents", "synthetic"})
    tasks = recipe.agent_tasks
    for name, weights in (
        ("pretrain_data.mix", recipe.pretrain_data.mix),
        ("midtrain_data.repository, long_documents and synthetic", shares),
        ("sft_data.modes", recipe.sft_data.modes),
        ("sft_data.families", recipe.sft_data.families),
        *([("agent_tasks.families", tasks.families)] if tasks.terminal else []),
        *_rl_weights(recipe),
    ):
        total = sum(weights.values())
        if total == 0:
            yield f"{name}: no weight is above 0: raise one"
        elif not math.isfinite(total):
            yield f"{name}: the sum of the weights is too large: lower them"


def _rl_weights(recipe: "Recipe") -> Iterator[tuple[str, dict[str, float]]]:
    """Of each stage of reinforcement learning; agentic_rl may have other tasks than those of families."""
    for stage, section in recipe:
        if isinstance(section, RlSection):
            others = {name: getattr(section, name, 0.0) for name in ("harbor", "search")}
            yield f"{stage}.families", {**section.families, **others}
            yield f"{stage}.modes", section.modes


def _vocabulary(recipe: "Recipe") -> Iterator[str]:
    tokenizer, model = recipe.tokenizer.vocab_size, recipe.model.config().vocab_size
    if tokenizer != model:
        in_preset = "vocab_size" not in (recipe.model.model_extra or {})
        given = f" (of preset {recipe.model.preset})" if in_preset else ""
        yield (
            f"tokenizer.vocab_size is {tokenizer} and model.vocab_size is {model}{given}: make them equal, "
            f"for instance with model.vocab_size: {tokenizer}"
        )


def _contexts(recipe: "Recipe") -> Iterator[str]:
    there = sorted(recipe.midtrain_data.contexts)
    for name, length in _lengths(recipe):
        if name.startswith(("midtrain", "dsa_")) and length not in there:
            nearest = min(there, key=lambda other: abs(other - length))
            yield (
                f"{name} is {length} and midtrain_data.contexts has no sequences of that length: "
                f"add {length} there, or use {nearest}, which it has"
            )


def _positions(recipe: "Recipe") -> Iterator[str]:
    most = recipe.model.config().max_positions
    for name, length in _lengths(recipe):
        if length > most:
            yield (
                f"{name} is {length} and the model has {most} positions: shorten it or raise "
                "model.max_positions"
            )


def _batches(recipe: "Recipe") -> Iterator[str]:
    for name, length in _lengths(recipe):
        stage = name.partition(".")[0]
        section = getattr(recipe, stage)
        batch, micro_tokens = section.global_batch_tokens, section.micro_batch * length
        if batch % micro_tokens:
            nearest = max(round(batch / micro_tokens), 1) * micro_tokens
            yield (
                f"{stage}.global_batch_tokens is {batch}, no multiple of micro_batch x sequence_length = "
                f"{section.micro_batch} x {length} = {micro_tokens}: make it {nearest}, for instance"
            )


def _checkpoints(recipe: "Recipe") -> Iterator[str]:
    kinds = (TrainSection, RlSection, QuantizeSection)
    there = [name for name, section in recipe if isinstance(section, kinds)]
    for name in recipe.evaluate.checkpoints:
        if name not in there:
            nearest = difflib.get_close_matches(name, there, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"those are {', '.join(there)}"
            yield f"evaluate.checkpoints names {name!r}, which is no stage with a checkpoint: {hint}"
    twice = [name for name, count in Counter(recipe.evaluate.checkpoints).items() if count > 1]
    if twice:
        yield f"evaluate.checkpoints names {', '.join(twice)} more than once: name each checkpoint once"


def _rl_families(recipe: "Recipe") -> Iterator[str]:
    there = recipe.rl_tasks.families
    for stage, section in recipe:
        if isinstance(section, RlSection):
            for name in section.families:
                if name not in there:
                    yield (
                        f"{stage}.families names {name!r}, of which rl_tasks.families has no tasks: add it "
                        "there"
                    )


def _lengths(recipe: "Recipe") -> Iterator[tuple[str, int]]:
    """Every length of a training sequence, with its place in the recipe."""
    yield "pretrain.sequence_length", recipe.pretrain.sequence_length
    for number, step in enumerate(recipe.midtrain.contexts):
        yield f"midtrain.contexts.{number}.sequence_length", step.sequence_length
    for stage in ("dsa_warmup", "dsa_adapt", "sft"):
        yield f"{stage}.sequence_length", getattr(recipe, stage).sequence_length
