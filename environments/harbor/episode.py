"""An agent with a shell at a Harbor task, like mini-swe-agent: each command runs in a fresh ``bash -c``.

Two tools, ``bash`` and ``submit``; a command whose output begins with the line ``SENTINEL`` submits as well.
However an attempt ends (submitted, out of steps or of time, three messages in a row without a usable call),
what it left is graded. Only a sandbox that fails gives no reward.
"""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from environments.episode import MalformedCall, tool_schema
from environments.harbor.task import HarborTask, load_task
from environments.harbor.verifier import make_folders, verify, work_directory
from environments.interface import Episode, Message, Step, Task, Verdict
from environments.sandbox.interface import Backend, Image, ImageError, Sandbox, SandboxError
from environments.swe.patches import Applied, apply_patch
from pipeline.errors import UserError

TOOLS = (tool_schema("bash", "command"), tool_schema("submit"))
SENTINEL = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
COMMAND_SECONDS = 60.0
MAX_STEPS = 100  # assistant messages
MAX_FORMAT_ERRORS = 3  # in a row
MAX_OBSERVATION = 10_000  # characters; of more the first and the last half are shown
NO_CALL = "No tool was called. Call bash with a command, or submit when the task is done."


class HarborEpisode(Episode):
    """``task.truth`` names the ``folder`` of the task below ``root`` and the ``digest`` it had.

    The agent's time is that of its commands: how long a model takes to answer says nothing of the task.
    """

    def __init__(self, root: Path, backend: Backend, max_steps: int = MAX_STEPS) -> None:
        self._root, self._backend, self._max_steps = root, backend, max_steps
        self._sandbox: Sandbox | None = None
        self._verdict: Verdict | None = None
        self.end = ""  # why no more steps are taken

    async def reset(self, task: Task) -> list[Message]:
        await self.close()
        self._steps = self._errors = 0
        self._verdict, self.end = None, ""
        self._task = await asyncio.to_thread(stored_task, self._root, task)
        self._seconds = self._task.config.agent.timeout_sec or float("inf")
        try:
            self._image: Image = await self._task.build(self._backend)
            self._sandbox = await self._backend.start(self._image, self._task.limits)
            await make_folders(self._sandbox)
        except (SandboxError, ImageError) as error:
            self._fail(error)
        return list(task.messages)

    async def step(self, message: Message) -> Step:
        if self.end and self._verdict is None:
            raise RuntimeError("the episode is over: reset it before another step")
        if self._verdict is not None:
            return Step(done=True)
        self._steps += 1
        try:
            replies = await self._act(message)
        except SandboxError as error:
            self._fail(error)
            return Step(done=True)
        if not self.end and self._errors >= MAX_FORMAT_ERRORS:
            self.end = f"{self._errors} messages in a row without a usable call"
        if not self.end and self._seconds <= 0:
            self.end = "the commands took the agent's whole time"
        if not self.end and self._steps >= self._max_steps:
            self.end = f"{self._steps} steps"
        return Step(replies, bool(self.end))

    async def apply(self, patch: str) -> Applied:
        """Put a unified diff that was made elsewhere into the task's git repository, as if the agent had."""
        if self._verdict is not None:
            return Applied(None, self._verdict.reason)
        try:
            return await apply_patch(self._sandbox, patch, work_directory(self._task, self._image))
        except SandboxError as error:
            self._fail(error)
            return Applied(None, self._verdict.reason)

    async def verify(self) -> Verdict:
        if self._verdict is None:
            if self._sandbox is None:
                raise RuntimeError("there is no episode to verify: reset it first")
            self.end = self.end or "verified before it was done"
            grading = await verify(self._task, self._sandbox, self._image, self._backend)
            self._verdict = grading.verdict
        return self._verdict

    async def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()

    async def _act(self, message: Message) -> list[Message]:
        """Carry out the calls of a message, in order; returns the tools' replies."""
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list) or not calls:
            self._errors += 1
            return [{"role": "user", "content": NO_CALL}]
        replies = []
        for call in calls:
            if self.end:
                break
            try:
                content = await self._call(*read_call(call))
                self._errors = 0
            except MalformedCall as error:
                self._errors += 1
                content = f"error: {error}"
            reply = {"role": "tool", "content": content}
            if isinstance(call, dict) and "id" in call:
                reply["tool_call_id"] = call["id"]
            replies.append(reply)
        return replies

    async def _call(self, name: str, arguments: dict[str, Any]) -> str:
        if name == "submit":
            self.end = "submitted"
            return "submitted"
        command = arguments.get("command")
        if set(arguments) != {"command"} or not isinstance(command, str) or "\0" in command:
            raise MalformedCall("bash takes one argument, the text command")
        seconds, start = min(COMMAND_SECONDS, self._seconds), time.monotonic()
        result = await self._sandbox.run(
            command,
            seconds=seconds,
            cwd=work_directory(self._task, self._image),
            environment=self._task.variables(self._task.config.environment.env),
        )
        self._seconds -= time.monotonic() - start
        if result.returncode == 0 and result.output.lstrip().split("\n", 1)[0].strip() == SENTINEL:
            self.end = "submitted"
        late = f"\n(killed: it ran longer than {seconds:g} s)" if result.timed_out else ""
        return f"exit status {result.returncode}{late}\n{shortened(result.output)}"

    def _fail(self, error: Exception) -> None:
        self._verdict, self.end = Verdict(None, f"the sandbox failed: {error}"), "the sandbox failed"


def stored_task(root: Path, task: Task) -> HarborTask:
    """The folder that a task record names. Raises ``UserError`` when it is another one by now."""
    try:
        folder, digest = str(task.truth["folder"]), task.truth["digest"]
    except KeyError as error:
        raise UserError(f"task {task.id} lacks {error} in truth: make the task file again") from None
    place = (root / folder).resolve()
    if not place.is_relative_to(root.resolve()):
        raise UserError(f"task {task.id} names a folder outside of {root}: make the task file again")
    loaded = load_task(place)
    if loaded.digest != digest:
        raise UserError(f"{place} was changed after task {task.id} was made: make the task file again")
    return loaded


def read_call(call: Any) -> tuple[str, dict[str, Any]]:
    """Name and arguments of an OpenAI tool call, whose arguments are an object or its JSON."""
    function = (call.get("function") or call) if isinstance(call, dict) else {}
    name = function.get("name") if isinstance(function, dict) else None
    if name not in ("bash", "submit"):
        raise MalformedCall(f"there is no tool {str(name)[:80]!r}, only bash and submit")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise MalformedCall(f"the arguments of {name} are not JSON") from None
    if not isinstance(arguments, dict):
        raise MalformedCall(f"the arguments of {name} are no object")
    return name, arguments


def shortened(output: str) -> str:
    """At most ``MAX_OBSERVATION`` characters: the first and the last half, and how many stood between."""
    if len(output) <= MAX_OBSERVATION:
        return output
    half = MAX_OBSERVATION // 2
    return f"{output[:half]}\n({len(output) - 2 * half} characters left out)\n{output[-half:]}"
