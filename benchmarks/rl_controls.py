"""Does reinforcement learning learn from its rewards, and from nothing else? Three runs tell.

    python -m benchmarks.rl_controls --recipe tiny

Reasoning RL from the recipe's fine-tuned checkpoint, on the same prompts with the same seeds: *as it is*;
with *lr zero*, where rewards must stay flat and engine and trainer agree in all steps; with rewards
*shuffled* over each batch, which must bring no gain. Each with the accuracy on held-out tasks before and
after, greedy, and paired 95 % intervals. Writes ``benchmarks/results/rl_controls.json``; exit status 1 where
one of these does not hold.
"""

import argparse
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np

from benchmarks.bare_context import bare_context
from data_pipelines.rl_tasks import distinct
from environments.catalog import environments, find_family
from environments.interface import Environment
from evals.environments import Environments, Item
from evals.policy import Score
from evals.statistics import bootstrap_difference
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import END_OF_TEXT
from pipeline import artifacts
from pipeline.errors import run_command
from pipeline.recipe import load_recipe
from pipeline.recipe.rl import ReasoningRlSection
from pipeline.stage import Context, git_commit
from pipeline.tracking import read_metrics
from tasks.evaluation.policy import LocalPolicy
from tasks.rl.difficulty import Pair
from tasks.rl.group import Group
from tasks.rl.groups import normalised
from tasks.rl.losses.icepop import IcePop
from tasks.rl.selection import Select, Selection, by_reward
from tasks.rl.setup import graded, in_modes, services_of
from tasks.rl.trainer import RlJob, train_policy
from tasks.training.output import write_checkpoint
from tasks.training.ranks import pick_device
from tasks.training.setup import load_model

RESULT = Path("benchmarks/results/rl_controls.json")
RUNS = ("as it is", "lr zero", "shuffled")
MISMATCH = 1e-6  # nats, in float32 on a CPU
DRAWS = 4000
CHANCE = 0.01  # rewards that are flat are held to have moved once in a hundred runs


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="tiny")
    parser.add_argument("--checkpoint", type=Path, help="without it the recipe's artifact of sft")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--tasks", type=int, default=40, help="of each family to train on")
    parser.add_argument("--heldout", type=int, default=40, help="of each family to measure on")
    arguments = parser.parse_args()
    os.environ["GLM5_MLFLOW"] = "off"
    recipe, started = load_recipe(arguments.recipe), time.time()
    start = arguments.checkpoint or artifacts.artifact_dir(recipe.name, "sft")
    section = recipe.reasoning_rl.model_copy(update={"steps": arguments.steps})
    names = [name for name, weight in section.families.items() if weight]
    catalog = environments()
    heldout = _heldout(catalog, names, arguments.heldout, section)
    with tempfile.TemporaryDirectory(prefix="rl-controls-") as folder:
        context = bare_context(Path(folder, "difficulty"), "reasoning_rl", section, recipe.seed)
        pairs = _pairs(context, start, catalog, names, arguments.tasks)
        before = _accuracy(start, heldout)
        rows = {}
        for name in RUNS:
            place, changed = Path(folder, name.replace(" ", "-")), _changed(section, name)
            context = bare_context(place, "reasoning_rl", changed, recipe.seed)
            rows[name] = _run(context, start, pairs, name == "shuffled") | _gain(before, heldout, context.out)
            print(f"{name}: {json.dumps(rows[name])}", flush=True)
    found = {
        "date": str(date.today()), "commit": git_commit(), "machine": platform.machine(),
        "cores": os.cpu_count(), "recipe": recipe.name, "section": section.model_dump(mode="json"),
        "heldout_tasks": before.n, "before": _share(before), "runs": rows, "holds": _holds(rows),
        "seconds": round(time.time() - started),
    }  # fmt: skip
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["holds"]), flush=True)
    return 0 if all(found["holds"].values()) else 1


def shuffled(select: Select, seed: int) -> Select:
    """Each reward of a batch goes to a rollout of it that is drawn by lot."""

    def chosen(groups: Sequence[Group], version: int) -> Selection:
        judged = [t for group in groups for t in group.trajectories if t.reward is not None]
        rewards = [trajectory.reward for trajectory in judged]
        random.Random(f"{seed}/{groups[0].index}").shuffle(rewards)
        drawn = {trajectory.id: reward for trajectory, reward in zip(judged, rewards, strict=True)}
        mixed = [
            Group(group.index, [replace(t, reward=drawn.get(t.id)) for t in group.trajectories])
            for group in groups
        ]
        return select(mixed, version)

    return chosen


def _changed(section: ReasoningRlSection, name: str) -> ReasoningRlSection:
    """A rate of 0 is no value for a recipe, so it is set past the recipe's checks."""
    if name != "lr zero":
        return section
    still = section.optimizer.model_copy(update={"muon_lr": 0.0, "adamw_lr": 0.0})
    return section.model_copy(update={"optimizer": still})


def _pairs(
    context: Context, start: Path, catalog: dict[str, Environment], names: Sequence[str], count: int
) -> dict[str, list[Pair]]:
    """Tasks that the checkpoint solves sometimes, the same for all runs."""
    section: ReasoningRlSection = context.section
    tasks = {name: list(distinct(*find_family(catalog, name), count, 0)) for name in names}
    pairs = {name: in_modes(found, section.modes, context.seed) for name, found in tasks.items()}
    if not section.difficulty_samples:
        return pairs
    model = load_model(start, pick_device())
    pairs, _ = graded(context, model, Tokenizer.load(start), pairs, section.difficulty_samples)
    return pairs


def _heldout(
    catalog: dict[str, Environment], names: Sequence[str], count: int, section: ReasoningRlSection
) -> Environments:
    mode = max(section.modes, key=section.modes.get)
    items = []
    for name in names:
        environment, family = find_family(catalog, name)
        items += [Item(environment.make_task(family, seed, heldout=True), mode) for seed in range(count)]
    return Environments(items, section.rollouts.max_new_tokens, section.rollouts.turns)


def _run(context: Context, start: Path, pairs: dict[str, list[Pair]], shuffle: bool) -> dict:
    """Train, leave the checkpoint in ``context.out``, and tell of the rewards on the way."""
    section: ReasoningRlSection = context.section
    model, tokenizer = load_model(start, pick_device()), Tokenizer.load(start)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    select = by_reward(section, normalised)
    loss = IcePop(section.beta, section.eps_low, section.eps_high)
    began = time.time()
    train_policy(
        RlJob(
            context, model, start, tokenizer.ids_by_name[END_OF_TEXT], services_of(context, pairs), loss,
            shuffled(select, context.seed) if shuffle else select,
        )
    )  # fmt: skip
    write_checkpoint(context, model, start)
    rows = read_metrics(context.scratch)
    rewards = [row["reward/mean"] for row in rows]
    return {
        "rewards": [round(reward, 4) for reward in rewards],
        "reward_change": _change(rewards, context.seed),
        "mismatch_kl_max": max((row["mismatch_kl"] for row in rows if "mismatch_kl" in row), default=0.0),
        "weights_changed": any((before[name] != t).any().item() for name, t in model.state_dict().items()),
        "updates": sum("mismatch_kl" in row for row in rows),
        "seconds": round(time.time() - began, 1),
    }


def _change(rewards: Sequence[float], seed: int) -> dict[str, float]:
    """From the first to the second half of the steps, and the share ``p`` of random halves that differ as
    much: steps of the same weights differ in their prompts alone.
    """
    rng, half = np.random.default_rng(seed), len(rewards) // 2
    drawn = rng.permuted(np.tile(rewards, (DRAWS, 1)), axis=1)
    differences = drawn[:, half:].mean(1) - drawn[:, :half].mean(1)
    change = float(np.mean(rewards[half:]) - np.mean(rewards[:half]))
    return {"value": change, "p": float((abs(differences) >= abs(change) - 1e-12).mean())}


def _accuracy(checkpoint: Path, suite: Environments) -> Score:
    scores = suite.run(LocalPolicy.load(checkpoint, pick_device())).scores
    return next(score for score in scores if score.name == f"exact/{suite.items[0].mode}")


def _gain(before: Score, suite: Environments, checkpoint: Path) -> dict:
    after = _accuracy(checkpoint, suite)
    low, high = bootstrap_difference(*(
        (np.array(score.numerators), np.array(score.denominators)) for score in (before, after)
    ))  # fmt: skip
    return {"after": _share(after), "gain": {"value": after.value - before.value, "low": low, "high": high}}


def _share(score: Score) -> dict[str, float]:
    return {"value": score.value, "low": score.low, "high": score.high}


def _holds(rows: dict[str, dict]) -> dict[str, bool]:
    """What must be so."""
    return {
        "as it is: held-out accuracy rises": rows["as it is"]["gain"]["low"] > 0,
        "lr zero: no weight changes": not rows["lr zero"]["weights_changed"],
        "lr zero: rewards are flat": rows["lr zero"]["reward_change"]["p"] > CHANCE,
        "lr zero: held-out accuracy is the same": rows["lr zero"]["gain"]["value"] == 0,
        "engine and trainer agree": all(row["mismatch_kl_max"] < MISMATCH for row in rows.values()),
        "shuffled: no gain": rows["shuffled"]["gain"]["low"] <= 0,
    }


if __name__ == "__main__":
    run_command(main)
