"""A rollout by an agent that is a program of its own, through the facade.

The program is a wrapper around an agent: it starts it, and judges what it did. It finds the policy's address
in ``OPENAI_BASE_URL``, and on its standard input the task, a JSON object of ``Task.to_record`` with ``mode``.
The last line that it prints is ``{"reward": 0.5, "reason": "..."}``; ``null`` is no reward, as nothing can be
said. An answer ``context_length_exceeded`` or ``session_ended`` ends an agent's work, not its judgement.

It runs on the host, outside any sandbox. Of this process's environment it gets ``PASSED`` alone, so no token
or key; what else it needs stands in its command, as in ``env NAME=value program``.
"""

import asyncio
import contextlib
import json
import math
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from typing import IO

from environments.interface import Verdict
from model.chat.tokens import MODES
from pipeline.parent import parents_death
from tasks.rl.gateway.facade import Facade
from tasks.rl.rollout import NOT_THE_FORMAT, Assignment, Limits, until_judged
from tasks.rl.trajectory import Trajectory

PASSED = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")
TAIL_BYTES = 65_536  # of what a program prints


async def roll_out_program(
    assignment: Assignment, command: Sequence[str], facade: Facade, limits: Limits
) -> Trajectory:
    """The trajectory of one rollout; tried again from its beginning where the program gave no reward."""
    return await until_judged(lambda: _attempt(assignment, command, facade, limits), limits.attempts)


async def _attempt(
    assignment: Assignment, command: Sequence[str], facade: Facade, limits: Limits
) -> Trajectory:
    started, task = time.monotonic(), assignment.task
    address = facade.open(assignment.name, assignment.seed, MODES[assignment.mode], limits.turns)
    try:
        given = json.dumps({**task.to_record(), "mode": assignment.mode})
        verdict = await _run(command, given, address, limits.seconds)
    finally:
        guest, session = facade.close(assignment.name)
    if guest.fault:
        verdict = Verdict(0.0, f"{NOT_THE_FORMAT}: {guest.fault}")
    return Trajectory(
        assignment.name, assignment.group, task.id, task.environment, task.family, assignment.mode,
        session.segments, verdict.reward, verdict.reason, guest.messages, time.monotonic() - started,
    )  # fmt: skip


async def _run(command: Sequence[str], given: str, address: str, seconds: float) -> Verdict:
    """What the program says. It ends with its time and with this process. Where it ends, its process group is
    killed; what left that group lives on, but its session is closed, so that it gets no more answers.
    """
    passed = {name: os.environ[name] for name in PASSED if name in os.environ}
    with contextlib.ExitStack() as files:
        task, out, faults = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        task.write(given.encode())
        task.seek(0)
        process = await asyncio.create_subprocess_exec(
            *command, stdin=task, stdout=out, stderr=faults, start_new_session=True,
            env={**passed, "OPENAI_BASE_URL": address, "OPENAI_API_KEY": "none"},
            preexec_fn=parents_death(signal.SIGKILL),
        )  # fmt: skip
        try:
            async with asyncio.timeout(seconds):
                status = await process.wait()
        except TimeoutError:
            return Verdict(None, f"no verdict in {seconds:.0f} s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if status:
            return Verdict(None, f"the agent's program ended with status {status}: {_last_line(faults)}")
        return _verdict(_last_line(out))


def _verdict(line: str) -> Verdict:
    try:
        said = json.loads(line)
        reward, reason = said["reward"], str(said.get("reason", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return Verdict(None, f"the agent's program ended with {line[:200]!r} instead of a reward")
    if reward is None:
        return Verdict(None, reason)
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        return Verdict(None, f"the agent's program gave {reward!r} for a reward")
    return Verdict(float(reward), reason)


def _last_line(file: IO[bytes]) -> str:
    """The last line with anything in it; nothing where there is none."""
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - TAIL_BYTES))
    lines = file.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
