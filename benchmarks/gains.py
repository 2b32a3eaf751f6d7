"""What reinforcement learning gains over several seeds, on held-out tasks sampled at temperature 1.

Families are grouped by the stage that is for them. Seeds are trained on the same data and answer the same
tasks, so a task's score is averaged over the seeds and differences are paired by task. Beside that interval,
over tasks, stands Student's over seeds: with three of them it is wide, and it is the one that says whether a
fourth seed would gain too.
"""

import json
import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import t

from evals.statistics import resamples
from pipeline import artifacts
from pipeline.errors import UserError
from pipeline.recipe import Recipe

CHECKPOINTS = ("sft", "reasoning_rl", "agentic_rl", "general_rl", "distill", "quantize")
# What is compared: a group of families, before, after.
DIFFERENCES = (
    ("reasoning", "sft", "reasoning_rl"),
    ("reasoning", "reasoning_rl", "general_rl"),
    ("reasoning", "general_rl", "distill"),
    ("reasoning", "sft", "distill"),
    ("tools", "sft", "agentic_rl"),
    ("tools", "reasoning_rl", "agentic_rl"),
    ("tools", "sft", "distill"),
    ("general", "agentic_rl", "general_rl"),
    ("general", "general_rl", "distill"),
    ("general", "sft", "distill"),
    ("others", "sft", "distill"),
)


@dataclass(frozen=True)
class Difference:
    """``after`` less ``before``: of each seed, over tasks (``low``, ``high``), over seeds (``t_*``)."""

    seeds: list[float]
    mean: float
    low: float
    high: float
    t_low: float
    t_high: float


def groups(recipe: Recipe, known: list[str]) -> dict[str, list[str]]:
    """Families by the stage that is for them; a family of several stages counts where it has the largest
    share of the weight, in the first of such.
    """
    sections = {
        "reasoning": recipe.reasoning_rl,
        "tools": recipe.agentic_rl,
        "general": recipe.general_rl,
    }
    found: dict[str, list[str]] = {name: [] for name in (*sections, "others")}
    for family in known:
        shares = {
            name: section.families.get(family, 0) / sum(section.families.values())
            for name, section in sections.items()
        }
        best = max(shares, key=lambda name: shares[name])
        found[best if shares[best] else "others"].append(family)
    return found


def read_scores(names: list[str]) -> dict[str, dict[str, np.ndarray]]:
    """Of each checkpoint and family, (seeds, tasks) in [0, 1]: the share of a task's samples that are right.

    Raises ``UserError`` where one that is compared was not sampled, or the seeds not on the same tasks.
    """
    found: dict[str, dict[str, list]] = {}
    for name in names:
        items = json.loads((artifacts.artifact_dir(name, "evaluate") / "items.json").read_text())
        for checkpoint in CHECKPOINTS:
            for score, item in items.get(checkpoint, {}).get("sampled", {}).items():
                if score.startswith("mean/") and "/" in score.removeprefix("mean/"):
                    family = score.removeprefix("mean/")
                    found.setdefault(checkpoint, {}).setdefault(family, []).append(item["values"])
    compared = dict.fromkeys(checkpoint for _, *pair in DIFFERENCES for checkpoint in pair)
    if missing := [checkpoint for checkpoint in compared if checkpoint not in found]:
        raise UserError(
            f"the evaluations of {', '.join(names)} have no sampled scores of {', '.join(missing)}: name "
            "them in evaluate.checkpoints, with evaluate.sampled_items_per_family above 0"
        )
    for families in found.values():
        for family, seeds in families.items():
            if len(seeds) != len(names) or len({len(values) for values in seeds}) > 1:
                raise UserError(
                    f"{family} was not sampled on the same tasks for every seed: evaluate all of "
                    f"{', '.join(names)} with the same settings"
                )
    return {c: {f: np.array(seeds) for f, seeds in families.items()} for c, families in found.items()}


def difference(before: list[np.ndarray], after: list[np.ndarray]) -> Difference:
    """Each argument holds (seeds, tasks) of every family of a group; the group's score is over all tasks."""
    changes = np.concatenate(after, 1) - np.concatenate(before, 1)
    seeds, tasks = changes.shape
    by_seed = changes.mean(1)
    low, high = np.quantile(resamples(tasks) @ changes.mean(0) / tasks, [0.025, 0.975])
    half = math.inf if seeds < 2 else t.ppf(0.975, seeds - 1) * by_seed.std(ddof=1) / math.sqrt(seeds)
    mean = float(by_seed.mean())
    return Difference(by_seed.tolist(), mean, float(low), float(high), mean - half, mean + half)


def gains(recipe: Recipe, names: list[str]) -> dict:
    """The groups' scores by checkpoint and their differences, of the seeds whose runs are ``names``."""
    scores = read_scores(names)
    families = groups(recipe, list(scores["sft"]))
    return {
        "families": families,
        "scores": {
            group: {c: float(np.concatenate([scores[c][f] for f in members], 1).mean()) for c in scores}
            for group, members in families.items()
        },
        "differences": [
            {
                "families": group, "before": a, "after": b,
                **vars(difference(*([scores[c][f] for f in families[group]] for c in (a, b)))),
            }
            for group, a, b in DIFFERENCES
        ],
        "recovered": _recovered(scores, families["reasoning"]),
    }  # fmt: skip


def _recovered(scores: dict[str, dict[str, np.ndarray]], families: list[str]) -> dict[str, float] | None:
    """The share of reasoning that general RL lost and distillation brought back, and its interval over tasks.

    None where nothing was lost. A resample without a loss counts as infinitely good.
    """
    best, lost, back = (
        np.concatenate([scores[c][f] for f in families], 1).mean(0)
        for c in ("reasoning_rl", "general_rl", "distill")
    )
    if best.mean() <= lost.mean():
        return None
    counts = resamples(len(best))
    loss, gain = counts @ (best - lost), counts @ (back - lost)
    shares = np.where(loss > 0, gain / np.where(loss > 0, loss, 1), np.inf)
    low, high = np.quantile(shares, [0.025, 0.975], method="inverted_cdf")
    share = (back.mean() - lost.mean()) / (best.mean() - lost.mean())
    return {"share": float(share), "low": float(low), "high": float(high)}


def render(found: dict) -> str:
    """Two tables in Markdown."""
    checkpoints = list(next(iter(found["scores"].values())))
    lines = [
        "| families | " + " | ".join(checkpoints) + " |",
        "|---" * (len(checkpoints) + 1) + "|",
        *(
            f"| {group} | " + " | ".join(f"{100 * values[c]:.1f} %" for c in checkpoints) + " |"
            for group, values in found["scores"].items()
        ),
        "",
        "| families | from | to | points, mean | over tasks | over seeds | each seed |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["differences"]:
        low, high, t_low, t_high = (100 * row[key] for key in ("low", "high", "t_low", "t_high"))
        seeds = ", ".join(f"{100 * value:+.1f}" for value in row["seeds"])
        lines.append(
            f"| {row['families']} | {row['before']} | {row['after']} | {100 * row['mean']:+.1f} | "
            f"{low:+.1f} to {high:+.1f} | {t_low:+.1f} to {t_high:+.1f} | {seeds} |"
        )
    if found["recovered"]:
        share, low, high = (100 * found["recovered"][key] for key in ("share", "low", "high"))
        lines += ["", f"Of the reasoning that general RL lost, distillation brought back {share:.0f} %, "
                      f"{low:.0f} to {high:.0f} over tasks."]  # fmt: skip
    return "\n".join(lines) + "\n"
