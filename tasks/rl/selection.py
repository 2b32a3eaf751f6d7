"""Which of a step's rollouts are trained on, with what advantage and weight (paper sections 3.2, 3.3,
4.1.2).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipeline.recipe.rl import RlSection
from tasks.rl.batches import Sample
from tasks.rl.group import Group
from tasks.rl.groups import filled, is_dead
from tasks.rl.trajectory import Trajectory

Advantages = Callable[[Sequence[float]], list[float]]  # of the rewards of a group


@dataclass
class Selection:
    """``counts`` tells what became of all rollouts and groups; ``values`` are logged beside them."""

    samples: list[Sample] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)
    values: dict[str, float] = field(default_factory=dict)
    from_teachers: bool = False  # in the place of advantages stand a teacher's log-probabilities


Select = Callable[[Sequence[Group], int], Selection]  # of the groups of a step, at a version of the weights


def by_reward(section: RlSection, advantages: Advantages) -> Select:
    """Train on what the rewards say, within the section's limits."""
    return lambda groups, version: select(
        groups, version, advantages, max_staleness=section.rollouts.max_staleness,
        length=section.sequence_length,
    )  # fmt: skip


def select(
    groups: Sequence[Group], version: int, advantages: Advantages | None, *, max_staleness: int, length: int
) -> Selection:
    """The samples of a step. Every rollout that is kept weighs the same, shared by its sampled tokens.

    Left out and counted: trajectories that are more than ``max_staleness`` versions old; those with a segment
    longer than ``length``; those whose environment failed, with their group where half of it or less is left;
    groups of equal rewards, which teach nothing. Without ``advantages`` rewards have no say: all samples have
    advantage 0, for another to set, and no group is left out for its rewards.
    """
    selection = Selection()
    chosen: list[tuple[Trajectory, float]] = []
    for group in groups:
        chosen += _of_group(group, version, advantages, max_staleness, length, selection.counts)
    share = 1 / max(len(chosen), 1)
    for trajectory, advantage in chosen:
        weight = share / max(trajectory.tokens, 1)
        selection.samples += [
            Sample(segment, advantage, weight, trajectory.id, f"{trajectory.environment}/{trajectory.family}")
            for segment in trajectory.segments
            if any(segment.sampled)
        ]
    return selection


def _of_group(
    group: Group,
    version: int,
    advantages: Advantages | None,
    max_staleness: int,
    length: int,
    counts: Counter,
) -> list[tuple[Trajectory, float]]:
    rewards: list[float | None] = []
    for trajectory in group.trajectories:
        fault = _fault(trajectory, version, max_staleness, length)
        counts[fault or "kept"] += 1
        rewards.append(None if fault else trajectory.reward)
    whole = filled(group.trajectories, rewards)
    if whole is None:
        counts["groups_dropped"] += 1
        return []
    trajectories, known = whole
    if advantages is not None and is_dead(known):
        counts["groups_dead"] += 1
        return []
    counts["groups_kept"] += 1
    values = advantages(known) if advantages is not None else [0.0] * len(known)
    return list(zip(trajectories, values, strict=True))


def _fault(trajectory: Trajectory, version: int, max_staleness: int, length: int) -> str | None:
    """Why a trajectory is left out, if it is."""
    if trajectory.reward is None:
        return "failed"
    if trajectory.staleness(version) > max_staleness:
        return "stale"
    if any(len(segment) > length for segment in trajectory.segments):
        return "too_long"
    if not trajectory.tokens:
        return "empty"
    return None
