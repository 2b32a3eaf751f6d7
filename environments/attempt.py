"""A person at a task, in the terminal or on a pipe: the prompt, their messages, the verdict.

A line is the answer; ``\\`` at its end continues it. ``$ ls`` calls ``bash``, ``/call NAME JSON`` any tool,
``/call NAME VALUE`` one of a single argument.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments.episode import answer
from environments.harbor.episode import HarborEpisode
from environments.interface import MODES, Environment, Episode, Message, Task, Verdict, play

HELP = """\
a line               your answer; a \\ at its end continues it
$ COMMAND            runs a command, where there is a shell
/call NAME JSON      calls a tool; with one argument its value alone will do
/tools               the tools of this task
/patch FILE          applies a diff of this machine, where the task has a git repository
/oracle [MODE]       plays the oracle's solution (interleaved, preserved or off) and ends
/done                judge what was done so far
/quit                or Ctrl-D: leave without a verdict"""


class Leave(Exception):
    """The person has had enough."""


@dataclass(frozen=True)
class Attempt:
    agent: str  # "person", or "oracle" where they had it play
    messages: list[Message]  # the whole dialogue
    verdict: Verdict | None  # None: they left


async def attempt(environment: Environment, task: Task, read: Callable[[str], str]) -> Attempt:
    """Let a person try ``task``; ``read`` gives a line, or raises ``EOFError``, which is to leave."""
    episode = environment.episode()
    messages: list[Message] = []
    try:
        messages += await episode.reset(task)
        for message in messages:
            show(message)
        if task.tools:
            print(_tools(task))
        if sys.stdin.isatty():
            print("(/help tells what you can do)")
        return await _dialogue(environment, task, episode, read, messages)
    except (Leave, EOFError):
        return Attempt("person", messages, None)
    finally:
        await episode.close()


async def _dialogue(
    environment: Environment,
    task: Task,
    episode: Episode,
    read: Callable[[str], str],
    messages: list[Message],
) -> Attempt:
    """``messages`` gets all that is said."""
    while True:
        line = _whole_line(read)
        command, _, rest = line.partition(" ")
        if command == "/oracle":
            return await _oracle(environment, task, rest.strip() or "interleaved")
        if command == "/done":
            return Attempt("person", messages, await episode.verify())
        if command == "/quit":
            raise Leave
        if command == "/help":
            print(HELP)
            continue
        if command == "/tools":
            print(_tools(task))
            continue
        if command == "/patch":
            messages += await _patched(episode, Path(rest.strip()))
            continue
        message = _message(line, task)
        if message is None:
            continue
        step = await episode.step(message)
        messages += [message, *step.messages]
        for reply in step.messages:
            show(reply)
        if step.done:
            return Attempt("person", messages, await episode.verify())


async def _patched(episode: Episode, path: Path) -> list[Message]:
    """Apply it and tell how it went; what was said: the patch, as an answer, and the outcome."""
    if not isinstance(episode, HarborEpisode):
        print("this task has no repository to patch")
        return []
    if path.exists() and not path.is_file():
        print(harmless(f"{path} cannot be read: it is no regular file"))
        return []
    try:
        patch = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: no text, or no such name
        print(harmless(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}"))
        return []
    applied = await episode.apply(patch)
    outcome = f"applied by {applied.way}" if applied.way else f"not applied: {applied.reason}"
    print(harmless(outcome))
    return [answer(None, patch), {"role": "user", "content": outcome}]


def _whole_line(read: Callable[[str], str]) -> str:
    lines = [read("> ")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(read("  "))
    return "\n".join(lines)


def _message(line: str, task: Task) -> Message | None:
    """The assistant message that a line stands for; None, with a sentence printed, where it is no call."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in task.tools}
    if line.startswith("$ ") and "bash" in schemas:
        return _call("bash", {"command": line[2:]})
    if line.split()[:1] != ["/call"]:
        if line.startswith("/"):
            print(f"there is no command {line.split()[0]} (/help tells what there is)")
        return None if line.startswith("/") or not line.strip() else answer(None, line)
    _, name, text = [*line.split(maxsplit=2), "", ""][:3]
    if name not in schemas:
        print(f"there is no tool {name!r} (known: {', '.join(schemas) or 'none'})")
        return None
    arguments = _arguments(text, list(schemas[name].get("properties", {})))
    if arguments is None:
        print(f"the arguments of {name} are not a JSON object: {text}")
        return None
    return _call(name, arguments)


def _call(name: str, arguments: dict[str, Any]) -> Message:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _arguments(text: str, names: list[str]) -> dict[str, Any] | None:
    try:
        given = json.loads(text or "{}")
    except (ValueError, RecursionError):
        given = text
    if isinstance(given, dict):
        return given
    return {names[0]: text} if len(names) == 1 else None


async def _oracle(environment: Environment, task: Task, mode: str) -> Attempt:
    """In an episode of its own: what the person did before is no part of it."""
    if mode not in MODES:
        print(f"no thinking mode {mode!r} (known: {', '.join(MODES)}); playing interleaved")
        mode = "interleaved"
    messages, verdict = await play(environment, task, environment.oracle(task, mode))
    for message in messages[len(task.messages) :]:
        show(message)
    return Attempt("oracle", messages, verdict)


def show(message: Message) -> None:
    """Print a message with who says it; control characters of an agent's output do not reach the terminal."""
    if message.get("reasoning_content"):
        print(f"(thinks) {harmless(message['reasoning_content'])}")
    for call in message.get("tool_calls") or []:
        function = call.get("function") or call
        print(f"(calls) {function['name']} {harmless(json.dumps(function['arguments'], ensure_ascii=False))}")
    if message.get("content") or not message.get("tool_calls"):
        print(f"[{message['role']}] {harmless(message.get('content') or '')}")


def _tools(task: Task) -> str:
    described = [
        f"  {tool['function']['name']}({', '.join(tool['function']['parameters'].get('properties', {}))})"
        f"  {tool['function'].get('description', '')}".rstrip()
        for tool in task.tools
    ]
    return "\n".join(["tools:", *described]) if described else "this task has no tools"


def harmless(text: str) -> str:
    """Text that cannot steer a terminal, nor fail to be written."""
    return "".join(
        mark if mark.isprintable() or mark in "\n\t" else "\N{REPLACEMENT CHARACTER}" for mark in text
    )
