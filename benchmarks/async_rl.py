"""Asynchronous against synchronous RL where tools take their time, and what the importance mask is for.

    python -m benchmarks.async_rl artifacts/tiny/sft

The same checkpoint learns to use tools whose replies take seconds now and then (``benchmarks.slow_tools``),
with two engines and as many groups each time: *sync*, rollouts of the present weights alone; *async*,
rollouts run ahead; *unmasked*, the same with every importance ratio let through; *uncorrected*, the same as
if all rollouts were of the present weights. What is learnt is measured on held-out tasks whose tools answer
at once. A finished run is kept in ``--runs`` and not made again, so that seeds can run in processes of their
own. Writes ``benchmarks/results/async_rl.json``.
"""

import argparse
import json
import math
import os
import platform
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import numpy as np
import torch

from benchmarks.bare_context import bare_context
from benchmarks.gains import difference
from benchmarks.slow_tools import LEAST, MOST, SHAPE, seconds
from data_pipelines.rl_tasks import distinct
from environments.catalog import environments, find_family
from evals.statistics import wilson
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import END_OF_TEXT
from model.transformer import Transformer
from pipeline import artifacts
from pipeline.errors import UserError, run_command
from pipeline.files import write_whole
from pipeline.recipe.rl import RlSection
from pipeline.stage import git_commit
from tasks.rl.catalog import CatalogConfig, open_catalog
from tasks.rl.difficulty import Pair, solve_rates
from tasks.rl.group import Group
from tasks.rl.groups import centred
from tasks.rl.losses.double_sided import DoubleSided
from tasks.rl.losses.tokens import SampledTokens, Values, mismatch_kl, weighted
from tasks.rl.objective import PolicyLoss
from tasks.rl.rollout import Limits
from tasks.rl.selection import Select, Selection, by_reward
from tasks.rl.setup import in_modes, services_of
from tasks.rl.trainer import RlJob, train_policy
from tasks.training.setup import load_model

RESULT = Path("benchmarks/results/async_rl.json")
CPU = torch.device("cpu")
SLOW = ("benchmarks.slow_tools:SlowTools", "benchmarks.slow_tools:SlowLookup")


def uncorrected(current_BT: torch.Tensor, tokens: SampledTokens) -> tuple[torch.Tensor, Values]:
    """The policy gradient with weight 1 for every token, whatever has become of its probability."""
    return -weighted(tokens.advantage_BT * current_BT, tokens), {"mismatch_kl": mismatch_kl(tokens)}


# Whether rollouts may run ahead, and the loss.
VARIANTS: dict[str, tuple[int, PolicyLoss]] = {
    "sync": (0, DoubleSided()),
    "async": (1, DoubleSided()),
    "unmasked": (1, DoubleSided(math.inf, math.inf)),
    "uncorrected": (1, uncorrected),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--ahead", type=int, default=4)
    parser.add_argument("--staleness", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--muon", type=float, default=3e-4, help="learning rate; AdamW's is half of it")
    parser.add_argument("--families", nargs="+", default=["tools/calc", "lookup/two", "lookup/hop"])
    parser.add_argument("--heldout", type=int, default=80, help="tasks of each family")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--runs", type=Path, default=Path("runs/async_rl"), help="folder of finished runs")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    os.environ["GLM5_MLFLOW"] = "off"
    names = ("before", *arguments.only)
    found = {name: [kept(name, seed, arguments) for seed in arguments.seeds] for name in names}
    result = {
        "date": date.today().isoformat(), "commit": git_commit(),
        "host": {"machine": platform.machine(), "cores": len(os.sched_getaffinity(0)), "of": os.cpu_count()},
        "settings": settings(arguments), "seeds": arguments.seeds, "tool_seconds": tool_seconds(),
        "compared": compared(found), "runs": found,
    }  # fmt: skip
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["compared"], indent=1))


def settings(arguments: argparse.Namespace) -> dict:
    """What runs must have in common to be compared."""
    apart = ("checkpoint", "seeds", "only", "runs", "out")
    same = {key: value for key, value in vars(arguments).items() if key not in apart}
    return {"weights": artifacts.verify(arguments.checkpoint)["content"], **same}


def kept(name: str, seed: int, arguments: argparse.Namespace) -> dict:
    """A run's result, read where it is finished. Raises ``UserError`` where that had other settings."""
    path, wanted = arguments.runs / f"{name}-{seed}.json", settings(arguments)
    if not path.exists():
        if name == "before":
            found = {"heldout": heldout_rewards(load_model(arguments.checkpoint, CPU), arguments, seed)}
        else:
            found = run(name, seed, arguments)
        arguments.runs.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"settings": wanted, **found}))
        print(f"{name}, seed {seed}: held out {found['heldout']['value']:.3f}", flush=True)
    found = json.loads(path.read_text())
    if found.pop("settings") != wanted:
        raise UserError(f"{path} is of a run with other settings: name another folder with --runs")
    return found


def compared(found: dict[str, list[dict]]) -> dict:
    """Each variant against the weights before and, where it ran, against *async*; points of held-out reward
    with intervals over tasks and over seeds, and how many times as fast as *sync* async is.
    """
    pairs = [("before", name) for name in found if name != "before"]
    pairs += [("async", name) for name in found if "async" in found and name not in ("before", "async")]
    rewards = {name: [np.array([run["heldout"]["rewards"] for run in runs])] for name, runs in found.items()}
    result = {f"{b}_less_{a}": vars(difference(rewards[a], rewards[b])) for a, b in pairs}
    if {"sync", "async"} <= set(found):
        seconds_of = {name: [run["seconds"] for run in found[name]] for name in ("sync", "async")}
        result["speedup"] = [a / b for a, b in zip(seconds_of["sync"], seconds_of["async"], strict=True)]
    return result


def run(name: str, seed: int, arguments: argparse.Namespace) -> dict:
    """Train one variant; its seconds, what it learnt, how old its rollouts were."""
    factor, loss = VARIANTS[name]
    with tempfile.TemporaryDirectory(prefix="async-rl-") as folder:
        context = bare_context(
            Path(folder), "agentic_rl", section_of(arguments, factor * arguments.ahead), seed
        )
        model, tokenizer = load_model(arguments.checkpoint, CPU), Tokenizer.load(arguments.checkpoint)
        watched = Watched(by_reward(context.section, centred))
        started = time.perf_counter()
        train_policy(
            RlJob(
                context, model, arguments.checkpoint, tokenizer.ids_by_name[END_OF_TEXT],
                services_of(context, tasks_of(context.section, seed)), Ratios(loss), watched,
                catalog=CatalogConfig(more=list(SLOW)),
            )
        )  # fmt: skip
        wall = time.perf_counter() - started
        rows = [json.loads(line) for line in (context.scratch / "metrics.jsonl").read_text().splitlines()]
    steps = [row["perf/rollout_s"] + row["perf/update_s"] + row["perf/push_s"] for row in rows]
    return {
        "seconds": sum(steps), "seconds_with_start": wall, "heldout": heldout_rewards(model, arguments, seed),
        "rollout_s": sum(row["perf/rollout_s"] for row in rows),
        "reward": [row.get("reward/mean") for row in rows], "finished_at": np.cumsum(steps).tolist(),
        "masked": [row.get("off_policy/masked") for row in rows],
        "ratio_max": [row.get("off_policy/ratio_max") for row in rows],
        "grad_norm": [row.get("optim/grad_norm") for row in rows],
        "staleness": dict(sorted(watched.ages.items())), "groups": dict(sorted(watched.groups.items())),
        "left_out": dict(watched.counts),
    }  # fmt: skip


class Watched:
    """A selection that remembers ages of rollouts, groups by family, what was left out."""

    def __init__(self, select: Select):
        self._select = select
        self.ages, self.groups, self.counts = Counter(), Counter(), Counter()

    def __call__(self, groups: Sequence[Group], version: int) -> Selection:
        for group in groups:
            first = group.trajectories[0]
            self.groups[f"{first.environment}/{first.family}"] += 1
            self.ages.update(t.staleness(version) for t in group.trajectories if t.tokens)
        selection = self._select(groups, version)
        self.counts.update(selection.counts)
        return selection


class Ratios:
    """A loss that also tells the largest importance ratio of a micro-batch."""

    def __init__(self, loss: PolicyLoss):
        self._loss = loss

    def __call__(self, current_BT: torch.Tensor, tokens: SampledTokens):
        loss, values = self._loss(current_BT, tokens)
        ratio_BT = (current_BT.detach() - tokens.rollout_BT).exp().where(tokens.counted_BT, 0.0)
        return loss, values | {"off_policy/ratio_max": ratio_BT.max()}


def section_of(arguments: argparse.Namespace, ahead: int) -> RlSection:
    return RlSection(
        steps=arguments.steps, families={f"slow_{family}": 1.0 for family in arguments.families},
        modes={"interleaved": 1.0, "preserved": 1.0}, sequence_length=256, micro_batch=4,
        optimizer={"muon_lr": arguments.muon, "adamw_lr": arguments.muon / 2, "weight_decay": 0.0},
        rollouts={
            "engines": 2, "prompts_per_step": arguments.prompts, "rollouts_per_prompt": arguments.rollouts,
            "max_new_tokens": 64, "at_once": 1000, "decode": "native", "ahead": ahead,
            "max_staleness": arguments.staleness,
        },
        save_every_steps=arguments.steps, trajectories_kept=0,
    )  # fmt: skip


def tasks_of(section: RlSection, seed: int) -> dict[str, list[Pair]]:
    catalog = open_catalog(CatalogConfig(more=list(SLOW)))
    pairs = {}
    for name in section.families:
        environment, family = find_family(catalog, name)
        pairs[name] = in_modes(list(distinct(environment, family, 200, seed)), section.modes, seed)
    return pairs


def heldout_rewards(model: Transformer, arguments: argparse.Namespace, seed: int) -> dict:
    """Sampled as in training, once for each task; with 95 % intervals, and the reward of each."""
    catalog, pairs = environments(), {}
    for name in arguments.families:
        environment, family = find_family(catalog, name)
        tasks = [environment.make_task(family, n, heldout=True) for n in range(arguments.heldout)]
        pairs[name] = [(task, "interleaved") for task in {task.id: task for task in tasks}.values()]
    rewards = solve_rates(
        model.eval(), Tokenizer.load(arguments.checkpoint), catalog,
        [pair for found in pairs.values() for pair in found], samples=1, max_new_tokens=64,
        seed=seed, limits=Limits(), at_once=256, decode="native",
    )  # fmt: skip
    low, high = wilson(sum(rewards), len(rewards))
    score = {"value": sum(rewards) / len(rewards), "low": low, "high": high, "rewards": rewards}
    left = list(rewards)
    for name, found in pairs.items():
        score[name] = sum(left[: len(found)]) / len(found)
        del left[: len(found)]
    return score


def tool_seconds() -> dict:
    """What the drawn waits are like."""
    rng = random.Random(0)
    drawn = np.array([seconds(rng) for _ in range(100_000)])
    quantiles = {f"p{q}": float(np.percentile(drawn, q)) for q in (50, 90, 99)}
    return {"pareto": SHAPE, "least": LEAST, "most": MOST, "mean": float(drawn.mean()), **quantiles}


if __name__ == "__main__":
    run_command(main)
