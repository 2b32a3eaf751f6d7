"""The reward of a rollout from its parts: the environment's verdict, rules, the reward model, the judge.

A rollout that leaves the chat format is worth 0 whatever else holds, and neither model nor judge is asked. A
part that does not apply to a task has no say; where one that has weight fails, the rollout has no reward.
Every part is kept in ``Trajectory.extra``, so that one that rises while the others fall is seen.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import aiohttp
from pydantic import BaseModel, ConfigDict

from environments.interface import Environment, Mode, Task
from model.chat.tokenizer import Tokenizer
from pipeline.recipe.rl import GeneralRlSection
from pipeline.recipe.rl import Judge as JudgeSettings
from tasks.rl.rewards.judge import Judge
from tasks.rl.rewards.rules import Attempt, judge_by_rules
from tasks.rl.rollout import NOT_THE_FORMAT
from tasks.rl.trajectory import Trajectory

PART, FAILED = "part/", "failed/"  # in Trajectory.extra
CAN_FAIL = ("task", "judge")


class RewardsConfig(BaseModel):
    """How the rollouts of a service are rewarded."""

    model_config = ConfigDict(extra="forbid")
    weights: dict[str, float]
    long_from: int
    long_until: int
    reward_model: Path | None = None
    judge: JudgeSettings | None = None

    @classmethod
    def of(cls, section: GeneralRlSection, reward_model: Path | None) -> Self:
        return cls(
            weights=section.rewards, long_from=section.long_from, long_until=section.long_until,
            reward_model=reward_model, judge=section.judge,
        )  # fmt: skip


class Rewards:
    """One of it for all services that share its settings, as they share model and judge."""

    def __init__(
        self,
        config: RewardsConfig,
        tokenizer: Tokenizer,
        catalog: Mapping[str, Environment],
        http: aiohttp.ClientSession,
    ):
        self._config, self._tokenizer, self._catalog = config, tokenizer, catalog
        self._model = None
        if config.reward_model is not None:
            from tasks.rl.rewards.scoring import Scorer  # torch and a model: for those who want one

            self._model = Scorer(config.reward_model)
        self._judge = Judge(config.judge, http) if config.judge is not None else None

    async def judge(self, task: Task, mode: Mode, trajectory: Trajectory) -> None:
        """Set reward, reason and parts of a rollout that its environment has judged."""
        parts = {"task": trajectory.reward, **self._by_rules(task, mode, trajectory)}
        if parts["format"] and parts["task"] is not None:
            if self._model is not None:
                parts["model"] = await self._model.reward(trajectory.segments[-1].ids)
            if self._judge is not None:
                parts["judge"] = await self._judge.reward(trajectory.messages)
        _set(trajectory, parts, self._config.weights)

    def _by_rules(self, task: Task, mode: Mode, trajectory: Trajectory) -> dict[str, float]:
        valid = not trajectory.reason.startswith(NOT_THE_FORMAT) and self._ended(trajectory)
        attempt = Attempt(task, mode, trajectory.messages, valid, trajectory.tokens)
        oracle = self._catalog[task.environment].oracle(task, mode) if task.tools else ()
        return judge_by_rules(attempt, oracle, self._config.long_from, self._config.long_until)

    def _ended(self, trajectory: Trajectory) -> bool:
        """Whether the policy ended its last turn by itself."""
        for segment in trajectory.segments[-1:]:
            sampled = [token for token, own in zip(segment.ids, segment.sampled, strict=True) if own]
            return bool(sampled) and sampled[-1] in self._tokenizer.stop_ids
        return False


def open_rewards(
    path: Path, tokenizer: Tokenizer, catalog: Mapping[str, Environment], http: aiohttp.ClientSession
) -> Rewards:
    return Rewards(RewardsConfig.model_validate_json(path.read_text()), tokenizer, catalog, http)


def combined(parts: Mapping[str, float | None], weights: Mapping[str, float]) -> float | None:
    """The weighted mean of the parts that apply; 0 outside of the chat format; None where a part with weight
    failed.
    """
    if parts["task"] is None:
        return None
    if not parts["format"]:
        return 0.0
    heard = {name: weights.get(name, 0.0) for name in parts if weights.get(name, 0.0)}
    if any(parts[name] is None for name in heard):
        return None
    total = sum(heard.values())
    return sum(parts[name] * weight for name, weight in heard.items()) / total if total else 0.0


def _set(trajectory: Trajectory, parts: Mapping[str, float | None], weights: Mapping[str, float]) -> None:
    trajectory.reward = combined(parts, weights)
    trajectory.extra |= {f"{PART}{name}": value for name, value in parts.items() if value is not None}
    trajectory.extra |= {f"{FAILED}{name}": float(parts[name] is None) for name in CAN_FAIL if name in parts}
    if trajectory.reward is None and parts["task"] is not None:
        silent = [name for name, value in parts.items() if value is None]
        trajectory.reason = f"{trajectory.reason}; no word from {', '.join(silent)}"
