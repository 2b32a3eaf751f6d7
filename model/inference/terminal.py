"""Talk to a checkpoint in the terminal: ``python -m model.inference.terminal NAME=FOLDER ...``.

At a terminal the answer streams, thinking is dimmed, Ctrl-C stops the answer and not the program. On a pipe
each line of the input is a message, only answers are written, and Ctrl-C ends the program; where a message
got none, or a command failed, the exit status is 1.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.chat.parser import Delta, Parsed, TokenParser
from model.chat.renderer import render
from model.chat.tokens import Thinking
from model.inference.request import SamplingParams
from model.inference.screen import Screen
from model.inference.server.checkpoints import Loaded
from model.inference.server.loading import first_of, named_folders, open_checkpoint, usable_device

# The tools that this project's models are trained with, and the name of their one argument. Here the person
# plays the tool.
TOOL_ARGUMENTS = {"calc": "e", "day": "d", "unit": "e", "search": "q"}
HELP = """\
/new                 forget the dialogue
/thinking on|off     let the model think before it answers
/model [NAME]        another checkpoint; without a name: which there are
/tools [NAME ...]    tools that the model may call, you give their results (calc, day, unit, search)
/temperature NUMBER  0 takes the most probable token
/history             the dialogue so far
/help                this
/quit                or Ctrl-D; Ctrl-C stops an answer"""


@dataclass
class Dialogue:
    """What was said, and how answers are sampled."""

    loaded: Loaded
    temperature: float = 0.0
    most: int | None = None  # sampled tokens of an answer
    thinking: bool = True
    tools: list[str] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, show: Callable[[Delta], None]) -> tuple[Parsed, int]:
        """Sample an answer and append it, as far as it came; ``show`` gets its deltas. Returns it with its
        number of tokens. Raises ``ValueError`` where the dialogue no longer fits, or the engine fails at it.
        """
        schemas = [_schema(name) for name in self.tools]
        tokenizer = self.loaded.tokenizer
        prompt = render(tokenizer, self.messages, schemas or None, Thinking(self.thinking, True), True).ids
        room = self.loaded.context - len(prompt)
        if room < 1:
            raise ValueError(f"the dialogue fills the context of {self.loaded.context} tokens: say /new")
        params = SamplingParams(
            max_new_tokens=min(room, self.most or room), temperature=self.temperature,
            stop_ids=tokenizer.stop_ids,
        )  # fmt: skip
        parser = TokenParser(tokenizer, schemas, self.thinking)
        stream = self.loaded.engine.submit(prompt, params)
        tokens, parsed = 0, None
        try:
            async for token in stream:
                tokens += 1
                for delta in parser.feed(token.id):
                    show(delta)
        finally:  # also when Ctrl-C ends it
            stream.close()
            for delta in parser.flush():
                show(delta)
            parsed = parser.finish()
            self.messages.append(parsed.message)
        if stream.completion.finish == "error":
            self.messages.pop()
            raise ValueError(f"the engine failed at this message: {stream.completion.error}")
        return parsed, tokens


class Chat:
    """The loop of reading, answering and obeying commands."""

    def __init__(self, folders: dict[str, Path], dialogue: Dialogue, screen: Screen, device: str):
        self._folders, self._dialogue, self._screen, self._device = folders, dialogue, screen, device
        self._runner = asyncio.Runner()

    def run(self, runner: asyncio.Runner) -> bool:
        """Returns whether every message was answered and every command obeyed."""
        self._runner = runner
        obeyed = True
        while True:
            try:
                line = self._screen.read("you> ")
            except EOFError:
                return obeyed
            except KeyboardInterrupt:  # a line is given up, not the program
                if not self._screen.people:
                    raise
                self._screen.note("")
                continue
            if line.strip() in ("/quit", "/exit"):
                return obeyed
            try:
                self._obey(line.strip())
            except ValueError as error:
                self._screen.fault(str(error))
                obeyed = False

    def _obey(self, line: str) -> None:
        if not line:
            return
        if not line.startswith("/"):
            self._dialogue.messages.append({"role": "user", "content": line})
            self._answer()
            return
        name, *words = line[1:].split()
        commands = {
            "new": self._new, "thinking": self._thinking, "model": self._model, "tools": self._tools,
            "temperature": self._temperature, "history": self._history, "help": self._help,
        }  # fmt: skip
        if name not in commands:
            raise ValueError(f"there is no command /{name}; /help lists them")
        commands[name](words)

    def _answer(self) -> None:
        """Answer the last message; where the model calls tools, ask for their results and go on."""
        dialogue, screen = self._dialogue, self._screen
        while True:
            started = time.perf_counter()
            try:
                parsed, tokens = self._runner.run(dialogue.answer(screen.show))
            except KeyboardInterrupt:
                screen.end_answer("stopped")
                dialogue.messages[-1].pop("tool_calls", None)
                if not screen.people:
                    raise
                return
            except ValueError:
                dialogue.messages.pop()  # the message that could not be answered
                raise
            speed = tokens / max(time.perf_counter() - started, 1e-9)
            cut = ", cut off at the limit" if parsed.finish == "length" else ""
            screen.end_answer(f"{tokens} tokens", f", {speed:.0f} tokens/s{cut}")
            calls = dialogue.messages[-1].get("tool_calls", [])
            if not calls or not self._give_results(calls):
                return

    def _give_results(self, calls: list[dict]) -> bool:
        results = []
        for call in calls:
            with contextlib.suppress(KeyboardInterrupt, EOFError):
                results.append(self._screen.read(f"result of {call['function']['name']}> "))
        if len(results) < len(calls):
            self._dialogue.messages[-1].pop("tool_calls")
            return False
        self._dialogue.messages += [{"role": "tool", "content": result} for result in results]
        return True

    def _new(self, _: list[str]) -> None:
        self._dialogue.messages.clear()
        self._screen.note("a new dialogue")

    def _thinking(self, words: list[str]) -> None:
        if words not in (["on"], ["off"]):
            raise ValueError("say /thinking on or /thinking off")
        self._dialogue.thinking = words == ["on"]
        self._screen.note(f"thinking {words[0]}")

    def _model(self, words: list[str]) -> None:
        loaded = self._dialogue.loaded
        if not words:
            for name in self._folders:
                self._screen.note(f"{'*' if name == loaded.name else ' '} {name}")
            return
        matches = [n for n in self._folders if words[0] in (n, n.rpartition("/")[2])]
        if len(matches) != 1:
            raise ValueError(f"there is no checkpoint {words[0]!r}; there are {', '.join(self._folders)}")
        self._dialogue.loaded = self._runner.run(
            open_checkpoint(matches[0], self._folders[matches[0]], device=self._device)
        )
        self._runner.run(loaded.engine.close())
        self._screen.note(f"now {matches[0]}")

    def _tools(self, words: list[str]) -> None:
        unknown = [word for word in words if word not in TOOL_ARGUMENTS]
        if unknown:
            raise ValueError(f"there is no tool {unknown[0]!r}; there are {', '.join(TOOL_ARGUMENTS)}")
        self._dialogue.tools = words
        self._screen.note(f"tools: {', '.join(words) or 'none'}")

    def _temperature(self, words: list[str]) -> None:
        try:
            temperature = float(words[0])
        except (IndexError, ValueError):
            raise ValueError("say /temperature and a number, like /temperature 0.7") from None
        SamplingParams(temperature=temperature)  # refuses what the engine would
        self._dialogue.temperature = temperature
        self._screen.note(f"temperature {temperature:g}")

    def _history(self, _: list[str]) -> None:
        for message in self._dialogue.messages:
            said = [
                message["content"],
                *(json.dumps(call["function"]) for call in message.get("tool_calls", [])),
            ]
            self._screen.note(f"{message['role']}: {' '.join(filter(None, said))}")

    def _help(self, _: list[str]) -> None:
        self._screen.note(HELP)


def _schema(name: str) -> dict:
    parameters = {"type": "object", "properties": {TOOL_ARGUMENTS[name]: {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="model.inference.terminal", description=__doc__.splitlines()[0])
    parser.add_argument("checkpoints", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--first", help="the one to begin with (default: the last)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the most probable token")
    parser.add_argument("--max-tokens", type=int, help="of an answer (default: what the context holds)")
    parser.add_argument("--no-thinking", action="store_true")
    parser.add_argument(
        "--tools", nargs="*", default=[], choices=[*TOOL_ARGUMENTS], help="the model may call"
    )
    options = parser.parse_args(arguments)
    sys.stdin.reconfigure(errors="surrogateescape")  # bytes that are no UTF-8 cost a line, not the program
    screen = Screen(sys.stdin, sys.stdout, sys.stderr)
    with asyncio.Runner() as runner:
        try:
            folders = named_folders(options.checkpoints)
            first = first_of(folders, options.first)
            usable_device(options.device)
            loaded = runner.run(open_checkpoint(first, folders[first], device=options.device))
        except (OSError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        dialogue = Dialogue(
            loaded, options.temperature, options.max_tokens, not options.no_thinking, options.tools
        )
        screen.greet(f"{first}: write a message; /help lists the commands, Ctrl-D ends")
        try:
            obeyed = Chat(folders, dialogue, screen, options.device).run(runner)
        except KeyboardInterrupt:
            return 130
        finally:
            runner.run(dialogue.loaded.engine.close())
    return 0 if obeyed or screen.people else 1


if __name__ == "__main__":
    sys.exit(main())
