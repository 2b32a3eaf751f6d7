"""What a step of reinforcement learning leaves for people: figures, times, and some of its trajectories."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from pipeline.tracking import keep_steps_before
from tasks.rl.group import Group
from tasks.rl.selection import Selection
from tasks.rl.trajectory import Trajectory, mean_reward


def describe(groups: Sequence[Group], selection: Selection, version: int) -> dict[str, float]:
    """Rewards by family, lengths, ages against the weights' ``version``, and what became of the rollouts."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    by_family: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_family.setdefault(f"{trajectory.environment}/{trajectory.family}", []).append(trajectory)
    rewards = {f"reward/{name}": mean_reward(found) for name, found in sorted(by_family.items())}
    rewards["reward/mean"] = mean_reward(trajectories)
    ages = [trajectory.staleness(version) for trajectory in trajectories if trajectory.tokens]
    tokens = [trajectory.tokens for trajectory in trajectories]
    values = {name: value for name, value in rewards.items() if value is not None}
    values |= {
        "rollout/len_mean": sum(tokens) / len(tokens), "rollout/len_max": max(tokens),
        "rollout/tokens": sum(tokens),
        "rollout/seconds_mean": sum(t.seconds for t in trajectories) / len(trajectories),
        "rollout/segments_mean": sum(len(t.segments) for t in trajectories) / len(trajectories),
        "off_policy/age_max": max(ages, default=0), "off_policy/age_mean": sum(ages) / max(len(ages), 1),
    }  # fmt: skip
    values |= {f"rollouts/{name}": count for name, count in selection.counts.items()}
    return values | _means(trajectories) | selection.values


def _means(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Of the values beside the reward, such as its parts: over the trajectories that have them."""
    found: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.extra.items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in sorted(found.items())}


class TrajectoryLog:
    """Some trajectories of every step, a line each: the report's viewer and MLflow's traces are made from it.

    A line is ``Trajectory.to_record`` and what training made of it: ``step``, ``version`` of the weights that
    learnt, ``group_rewards`` of all rollouts of its prompt, and in each segment ``advantage``, of all tokens
    or a list with one of each, or ``teacher_logprobs`` where a teacher judged; None where nothing was learnt.
    """

    def __init__(self, path: Path, of_a_step: int):
        self.path, self._of_a_step = path, of_a_step

    def keep(self, step: int, version: int, groups: Sequence[Group], selection: Selection) -> None:
        """The first of each family."""
        kept: dict[str, tuple[Trajectory, Group]] = {}
        for group in groups:
            for trajectory in group.trajectories:
                kept.setdefault(f"{trajectory.environment}/{trajectory.family}", (trajectory, group))
        key = "teacher_logprobs" if selection.from_teachers else "advantage"
        learnt = {id(sample.segment): sample.advantage for sample in selection.samples}
        with open(self.path, "a", encoding="utf-8") as file:
            for trajectory, group in list(kept.values())[: self._of_a_step]:
                record = {"step": step, "version": version, **trajectory.to_record()}
                record["group_rewards"] = [other.reward for other in group.trajectories]
                for line, segment in zip(record["segments"], trajectory.segments, strict=True):
                    line[key] = _plain(learnt.get(id(segment)))
                file.write(json.dumps(record) + "\n")  # in ASCII: what a model says may be no valid Unicode

    def rewind(self, step: int) -> None:
        """Keep the lines of earlier steps alone."""
        keep_steps_before(step, self.path)


class StepTimes:
    """When each step's rollouts, update and push of weights were, a line a step: the report's timeline.

    A line: ``step``; ``ended``, Unix seconds; ``seconds`` of the trainer by part, in the order in which they
    end with it; and of every rollout of the step [began, ended, its oldest weight version, sampled tokens].
    """

    def __init__(self, path: Path):
        self.path = path

    def keep(self, step: int, seconds: dict[str, float], groups: Sequence[Group]) -> None:
        spans = [_span(trajectory) for group in groups for trajectory in group.trajectories]
        rollouts = [span for span in spans if span]
        line = {"step": step, "ended": time.time(), "seconds": seconds, "rollouts": rollouts}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def rewind(self, step: int) -> None:
        """Keep the lines of earlier steps alone."""
        self.path.touch()
        keep_steps_before(step, self.path)


def _span(trajectory: Trajectory) -> list[float] | None:
    """None for a rollout that asked no engine for anything."""
    turns = [turn for segment in trajectory.segments for turn in segment.turns]
    oldest = [segment.oldest for segment in trajectory.segments if segment.oldest is not None]
    if not turns or not oldest:
        return None
    began, ended = min(turn.began for turn in turns), max(turn.ended for turn in turns)
    return [round(began, 3), round(ended, 3), min(oldest), trajectory.tokens]


def _plain(advantage: float | Sequence[float] | None) -> float | list[float] | None:
    if advantage is None or isinstance(advantage, (int, float)):
        return advantage
    return [float(value) for value in advantage]
