"""One attempt of the policy at one task: turns through the gateway, the environment's replies, the verdict.

What ends a rollout, and what it is worth (the error policy of agent harnesses, paper section 4.1.1):

- the environment judges: its reward, also where the policy gave up, ran out of turns, of tokens or of
  context;
- the turn does not keep to the chat format: 0, the trace ends there (GLM-4.5, section 3.3);
- the environment or its sandbox fails, or hangs: None, and the rollout is tried again from its beginning.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from environments.context import Folded, hierarchical
from environments.interface import Environment, Episode, Message, Mode, Task, Verdict
from model.chat.renderer import render
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import MODES, Thinking
from pipeline.recipe.rl import Folding
from tasks.rl.engines.client import ContextFull
from tasks.rl.gateway.gateway import Gateway
from tasks.rl.trajectory import Segment, Trajectory

NOT_THE_FORMAT = "not in the chat format"  # begins the reason of such a verdict


@dataclass(frozen=True)
class Limits:
    """Of one rollout."""

    turns: int = 8
    seconds: float = 600.0  # until the environment is held to hang
    attempts: int = 2  # at a rollout whose environment fails
    folding: Folding | None = None  # of what the policy is shown of its history


@dataclass(frozen=True)
class Assignment:
    """What is rolled out: ``name`` is the session's, ``seed`` fixes the draws."""

    name: str
    group: str
    task: Task
    mode: Mode
    seed: int


async def roll_out(
    assignment: Assignment,
    environment: Environment,
    gateway: Gateway,
    limits: Limits = Limits(),
) -> Trajectory:
    """The trajectory of one rollout. ``NoEngine`` passes through: it says nothing about the rollout."""
    return await until_judged(lambda: _attempt(assignment, environment, gateway, limits), limits.attempts)


async def until_judged(attempt: Callable[[], Awaitable[Trajectory]], attempts: int) -> Trajectory:
    """The first trajectory with a reward, or the last of all attempts."""
    for _ in range(attempts):
        trajectory = await attempt()
        if trajectory.reward is not None:
            break
    return trajectory


async def _attempt(
    assignment: Assignment, environment: Environment, gateway: Gateway, limits: Limits
) -> Trajectory:
    started, messages = time.monotonic(), []
    gateway.open(assignment.name, assignment.seed)
    episode = environment.episode()
    try:
        async with asyncio.timeout(limits.seconds):
            verdict = await _play(assignment, episode, gateway, limits, messages)
    except TimeoutError:
        verdict = Verdict(None, f"no verdict in {limits.seconds:.0f} s")
    finally:
        session = gateway.close(assignment.name)
        await _close(episode)
    return _trajectory(assignment, session.segments, verdict, messages, time.monotonic() - started)


async def _play(
    assignment: Assignment, episode: Episode, gateway: Gateway, limits: Limits, record: list[Message]
) -> Verdict:
    """Play to the verdict; ``record`` gets every message, folded or not."""
    task, thinking = assignment.task, MODES[assignment.mode]
    tools = list(task.tools) or None
    opening = await _guarded(episode.reset(task))
    if isinstance(opening, Verdict):
        return opening
    shown = list(opening)
    record += shown
    for _ in range(limits.turns):
        folded = False
        if limits.folding is not None:
            shown, folded = _fold(shown, limits.folding, gateway.tokenizer, tools, thinking)
        try:
            reply = await gateway.chat(assignment.name, shown, tools, thinking, folded)
        except ContextFull:
            break
        shown = [*shown, reply.message]
        record.append(reply.message)
        if reply.finish == "length":
            break
        if not reply.valid:
            return Verdict(0.0, f"{NOT_THE_FORMAT}: {reply.reason}")
        step = await _guarded(episode.step(reply.message))
        if isinstance(step, Verdict):
            return step
        shown += step.messages
        record += step.messages
        if step.done:
            break
    return await _guarded(episode.verify())


def _fold(
    messages: Sequence[Message],
    folding: Folding,
    tokenizer: Tokenizer,
    tools: list[dict] | None,
    thinking: Thinking,
) -> Folded:
    def count(some: Sequence[Message]) -> int:
        return len(render(tokenizer, list(some), tools, thinking, True).ids)

    return hierarchical(messages, count, folding.keep_rounds, folding.reset_tokens)


async def _guarded(call):
    """What the environment gives, or a verdict without a reward: any error of it is its own."""
    try:
        return await call
    except Exception as error:
        return Verdict(None, f"the environment failed: {type(error).__name__}: {error}")


async def _close(episode: Episode) -> None:
    try:
        await episode.close()
    except Exception as error:  # its verdict stands; what it holds is swept by its backend
        print(f"an episode did not close: {type(error).__name__}: {error}", flush=True)


def _trajectory(
    assignment: Assignment,
    segments: list[Segment],
    verdict: Verdict,
    messages: list[Message],
    seconds: float,
) -> Trajectory:
    task = assignment.task
    return Trajectory(
        assignment.name, assignment.group, task.id, task.environment, task.family, assignment.mode, segments,
        verdict.reward, verdict.reason, messages, seconds,
    )  # fmt: skip
