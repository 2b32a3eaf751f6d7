"""Groups of rollouts of one prompt: advantages, and what a failed environment means (paper 3.2, 3.3).

A reward is a finite number or None. None is no failure of the policy: such a rollout is left out, and its
group is filled up with copies of the others where more than half are left, else dropped.
"""

import math
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")
EPSILON = 1e-6  # added to the deviation, as slime does


def normalised(rewards: Sequence[float]) -> list[float]:
    """(R - mean) / std of a group, for reasoning RL (equation 1). All 0 where the rewards are equal."""
    mean, deviation = _moments(rewards)
    return [(reward - mean) / (deviation + EPSILON) for reward in rewards]


def centred(rewards: Sequence[float]) -> list[float]:
    """R - mean of a group, for agentic RL: the paper prints no deviation there."""
    mean, _ = _moments(rewards)
    return [reward - mean for reward in rewards]


def filled(group: Sequence[Item], rewards: Sequence[float | None]) -> tuple[list[Item], list[float]] | None:
    """The group without the rollouts that have no reward, filled up by repeating the others in turn.

    None where half of it or less is left: such a group is dropped. Raises ``ValueError`` for a reward that
    is not a finite number.
    """
    for reward in rewards:
        if reward is not None and not math.isfinite(reward):
            raise ValueError(f"a reward is {reward}: an environment that cannot judge says None")
    valid = [(item, reward) for item, reward in zip(group, rewards, strict=True) if reward is not None]
    if 2 * len(valid) <= len(group):
        return None
    padded = [valid[place % len(valid)] for place in range(len(group))]
    return [item for item, _ in padded], [reward for _, reward in padded]


def is_dead(rewards: Sequence[float]) -> bool:
    """Whether all rewards are equal, so that the group teaches nothing."""
    return min(rewards) == max(rewards)


def _moments(rewards: Sequence[float]) -> tuple[float, float]:
    mean = sum(rewards) / len(rewards)
    return mean, math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
