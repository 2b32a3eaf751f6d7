"""A person at a task, in the terminal or on a pipe: the prompt, their messages, the verdict.

A line is the answer; ``\\`` at its end continues it. ``$ ls`` calls ``bash``, ``/call NAME JSON`` any tool,
``/call NAME VALUE`` one of a single argument.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
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


class Refused(Exception):
    """A line that did nothing: its sentence says why, and the next line is read."""


@dataclass
class Attempt:
    """Filled while it lasts."""

    agent: str = "person"  # or "oracle" where they had it play
    messages: list[Message] = field(default_factory=list)  # the whole dialogue
    verdict: Verdict | None = None  # None: they left
    refused: list[str] = field(default_factory=list)  # why commands were not done


async def attempt(environment: Environment, task: Task, read: Callable[[str], str]) -> Attempt:
    """Let a person try ``task``; ``read`` gives a line, or raises ``EOFError``, which is to leave."""
    tried, episode = Attempt(), environment.episode()
    try:
        tried.messages += await episode.reset(task)
        for message in tried.messages:
            show(message)
        if task.tools:
            print(_tools(task))
        if sys.stdin.isatty():
            print("(/help tells what you can do)")
        await _dialogue(environment, task, episode, read, tried)
    except (Leave, EOFError):
        pass
    finally:
        await episode.close()
    return tried


async def _dialogue(
    environment: Environment, task: Task, episode: Episode, read: Callable[[str], str], tried: Attempt
) -> None:
    while tried.verdict is None:
        line = _whole_line(read)
        command, _, rest = line.partition(" ")
        try:
            if command == "/oracle":
                await _oracle(environment, task, rest.strip() or "interleaved", tried)
            elif command == "/done":
                tried.verdict = await episode.verify()
            elif command == "/quit":
                raise Leave
            elif command == "/help":
                print(HELP)
            elif command == "/tools":
                print(_tools(task))
            elif command == "/patch":
                await _patch(episode, Path(rest.strip()), tried)
            elif line.strip():
                await _answer(episode, _message(line, task), tried)
        except Refused as error:
            tried.refused.append(harmless(str(error)))
            print(tried.refused[-1])


async def _answer(episode: Episode, message: Message, tried: Attempt) -> None:
    step = await episode.step(message)
    tried.messages += [message, *step.messages]
    for reply in step.messages:
        show(reply)
    if step.done:
        tried.verdict = await episode.verify()


async def _patch(episode: Episode, path: Path, tried: Attempt) -> None:
    """Apply it and tell how it went; what is said: the patch, as an answer, and the outcome."""
    if not isinstance(episode, HarborEpisode):
        raise Refused("this task has no repository to patch")
    if path.exists() and not path.is_file():
        raise Refused(f"{path} cannot be read: it is no regular file")
    try:
        patch = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: no text, or no such name
        why = getattr(error, "strerror", None) or "it is no text"
        raise Refused(f"{path} cannot be read: {why}") from None
    applied = await episode.apply(patch)
    outcome = f"applied by {applied.way}" if applied.way else f"not applied: {applied.reason}"
    tried.messages += [answer(None, patch), {"role": "user", "content": outcome}]
    if not applied.way:
        raise Refused(outcome)
    print(harmless(outcome))


def _whole_line(read: Callable[[str], str]) -> str:
    lines = [read("> ")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(read("  "))
    return "\n".join(lines)


def _message(line: str, task: Task) -> Message:
    """The assistant message that a line stands for. Raises ``Refused`` where it is no call."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in task.tools}
    if line.startswith("$ ") and "bash" in schemas:
        return _call("bash", {"command": line[2:]})
    if line.split()[:1] != ["/call"]:
        if line.startswith("/"):
            raise Refused(f"there is no command {line.split()[0]} (/help tells what there is)")
        return answer(None, line)
    _, name, text = [*line.split(maxsplit=2), "", ""][:3]
    if name not in schemas:
        raise Refused(f"there is no tool {name!r} (known: {', '.join(schemas) or 'none'})")
    arguments = _arguments(text, list(schemas[name].get("properties", {})))
    if arguments is None:
        raise Refused(f"the arguments of {name} are not a JSON object: {text}")
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


async def _oracle(environment: Environment, task: Task, mode: str, tried: Attempt) -> None:
    """In an episode of its own: what the person did before is no part of it."""
    if mode not in MODES:
        raise Refused(f"no thinking mode {mode!r} (known: {', '.join(MODES)})")
    tried.messages, tried.verdict = await play(environment, task, environment.oracle(task, mode))
    tried.agent = "oracle"
    for message in tried.messages[len(task.messages) :]:
        show(message)


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
