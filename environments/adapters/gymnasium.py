"""An environment behind the calls of Gymnasium, for trainers that step one world at a time.

    world = World(environments()["tools"], "calc")
    observation, info = world.reset(seed=7)
    observation, reward, terminated, truncated, info = world.step({"role": "assistant", "content": "12"})

Observations are the OpenAI-style messages that are new since the last call, actions are assistant messages;
both have no fixed size, so there are no spaces to declare. The reward comes with the last step. Where the
environment itself failed there is no reward but ``EnvironmentFailed``: drop such an episode.
"""

import asyncio
from typing import Any

from environments.interface import Environment, Episode, Message, Task


class EnvironmentFailed(RuntimeError):
    """The environment, not the agent, failed."""


class World:
    """One family of tasks, one episode at a time. ``max_steps`` cuts an episode off, which is then judged."""

    def __init__(self, environment: Environment, family: str, max_steps: int = 32, heldout: bool = False):
        self.environment, self.family, self.max_steps, self.heldout = environment, family, max_steps, heldout
        self.task: Task | None = None
        self._episode: Episode | None = None
        self._runner = asyncio.Runner()

    def reset(
        self, *, seed: int = 0, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Begin the task of ``seed``, or ``options["task"]``. Returns the prompt, and the task's tools."""
        self._end()
        task = (options or {}).get("task") or self.environment.make_task(self.family, seed, self.heldout)
        self.task, self._steps, self._episode = task, 0, self.environment.episode()
        prompt = self._runner.run(self._episode.reset(task))
        return prompt, {"task": task.id, "tools": list(task.tools), "difficulty": task.difficulty}

    def step(self, action: Message) -> tuple[list[Message], float, bool, bool, dict[str, Any]]:
        """Take an assistant message: new messages, reward, terminated, truncated, info with the reason.

        Raises ``EnvironmentFailed``; ``RuntimeError`` before a reset and after the end.
        """
        if self._episode is None:
            raise RuntimeError("there is no episode: reset the world first")
        step = self._runner.run(self._episode.step(action))
        self._steps += 1
        truncated = not step.done and self._steps >= self.max_steps
        if not step.done and not truncated:
            return step.messages, 0.0, False, False, {}
        verdict = self._runner.run(self._episode.verify())
        self._end()
        if verdict.reward is None:
            raise EnvironmentFailed(verdict.reason)
        return step.messages, verdict.reward, step.done, truncated, {"reason": verdict.reason}

    def close(self) -> None:
        """Let go of the episode and of the event loop."""
        self._end()
        self._runner.close()

    def _end(self) -> None:
        if self._episode is not None:
            self._runner.run(self._episode.close())
            self._episode = None
