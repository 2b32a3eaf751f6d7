"""A blind arena between checkpoints: answers to the same prompts, two by two, judged by verifiers and rules.

The judge sees two answers as left and right, in an order drawn by lot, and never whose they are. Ratings are
the Bradley-Terry model's, on the Elo scale with the contestants' mean at 1000; a tie is half a win for each.
The bootstrap draws tasks: the battles of one task, in all its modes, are one item.

G tasks, C contestants, R resamples.
"""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evals.statistics import resamples

Answer = Mapping[str, Any]  # a record of ``evals.attempts``
VERSION = 2
SCALE, ANCHOR = 400 / math.log(10), 1000.0
# Half a win for each of a pair, once a pair: one that never lost a battle keeps a finite rating.
PRIOR = 0.5
RULES = ("valid", "language", "repetition")  # in this order, where the verifier cannot tell two answers apart
NEWTON_STEPS = 60


@dataclass(frozen=True)
class Rating:
    name: str
    value: float
    low: float  # 95 % bootstrap over tasks
    high: float


@dataclass(frozen=True)
class Arena:
    """``wins[a][b]``: battles that a won against b, a tie counting half; ``battles`` and ``ties`` of all,
    ``tasks`` that had a battle.
    """

    ratings: list[Rating]
    wins: dict[str, dict[str, float]]
    tasks: int
    battles: int
    ties: int


def judge(left: Answer, right: Answer) -> float:
    """1 where the left answer is better, 0 where the right one is, 0.5 where nothing tells them apart.

    The verifier's reward decides; between equal ones the rules of format, language and repetition, in turn.
    """
    for rule in ("reward", *RULES):
        if left[rule] != right[rule]:
            return float(left[rule] > right[rule])
    return 0.5


def hold(answers: Mapping[str, Sequence[Answer]], seed: int) -> Arena:
    """Every pair of contestants on every prompt that both answered and the environment could judge.

    ``answers`` are records by contestant, told apart by task and mode. Raises ``ValueError`` for fewer than
    two contestants, or for two that share no prompt.
    """
    names = list(answers)
    if len(names) < 2:
        raise ValueError(f"an arena needs two contestants or more, not {len(names)}")
    by_prompt = {name: {(a["task"], a["mode"]): a for a in answers[name]} for name in names}
    tasks = list(dict.fromkeys(task for name in names for task, _ in by_prompt[name]))
    place = {task: number for number, task in enumerate(tasks)}
    wins_GCC = np.zeros((len(tasks), len(names), len(names)))
    rng, ties = random.Random(seed), 0
    for (i, a), (j, b) in itertools.combinations(enumerate(names), 2):
        for prompt, first in by_prompt[a].items():
            second = by_prompt[b].get(prompt)
            if second is None or first["reward"] is None or second["reward"] is None:
                continue
            won = judge(first, second) if rng.random() < 0.5 else 1 - judge(second, first)
            wins_GCC[place[prompt[0]], i, j] += won
            wins_GCC[place[prompt[0]], j, i] += 1 - won
            ties += won == 0.5
        if not wins_GCC[:, i, j].any() and not wins_GCC[:, j, i].any():
            raise ValueError(f"{a} and {b} answered no prompt in common: nothing can be judged")
    wins_GCC = wins_GCC[wins_GCC.any((1, 2))]  # a task without a battle is no item of the bootstrap
    values_C, low_C, high_C = _rate(wins_GCC)
    total_CC = wins_GCC.sum(0)
    return Arena(
        [Rating(*row) for row in zip(names, values_C.tolist(), low_C.tolist(), high_C.tolist(), strict=True)],
        {a: {b: float(total_CC[i, j]) for j, b in enumerate(names) if i != j} for i, a in enumerate(names)},
        len(wins_GCC), int(total_CC.sum()), int(ties),
    )  # fmt: skip


def bradley_terry(wins_RCC: np.ndarray) -> np.ndarray:
    """Log-strengths (R, C) of mean 0 that make the wins, ``PRIOR`` added, most likely: by Newton's method."""
    C = wins_RCC.shape[-1]
    wins_RCC = wins_RCC + PRIOR * (1 - np.eye(C))
    battles_RCC = wins_RCC + wins_RCC.transpose(0, 2, 1)
    beta_RC = np.zeros(wins_RCC.shape[:2])
    for _ in range(NEWTON_STEPS):
        odds_RCC = 1 / (1 + np.exp(beta_RC[:, None, :] - beta_RC[:, :, None]))  # that the first one wins
        slope_RC = (wins_RCC - battles_RCC * odds_RCC).sum(-1)
        weight_RCC = battles_RCC * odds_RCC * (1 - odds_RCC)
        # Strengths are known up to a constant: a matrix of ones holds their sum at 0.
        curve_RCC = weight_RCC.sum(-1)[:, :, None] * np.eye(C) - weight_RCC + 1.0
        step_RC = np.linalg.solve(curve_RCC, slope_RC[..., None])[..., 0]
        beta_RC = beta_RC + np.clip(step_RC, -1.0, 1.0)
        if np.abs(step_RC).max() < 1e-9:
            break
    return beta_RC - beta_RC.mean(-1, keepdims=True)


def _rate(wins_GCC: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ratings and their bounds, each (C,); infinite bounds where there is one task alone."""
    G, C, _ = wins_GCC.shape
    values_C = ANCHOR + SCALE * bradley_terry(wins_GCC.sum(0)[None])[0]
    if G < 2:
        return values_C, np.full(C, -np.inf), np.full(C, np.inf)
    drawn_RCC = (resamples(G) @ wins_GCC.reshape(G, -1)).reshape(-1, C, C)
    low_C, high_C = np.quantile(ANCHOR + SCALE * bradley_terry(drawn_RCC), [0.025, 0.975], axis=0)
    return values_C, low_C, high_C
