"""An attempt at a search task: tools over the corpus, budgets, an answer that is compared as a name."""

import itertools
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from environments.episode import MalformedCall
from environments.interface import Episode, Message, Step, Task, Verdict
from environments.sandbox.interface import Sandbox, SandboxError
from environments.search.corpus import Corpus, Document
from environments.search.index import Index, words
from environments.search.names import normal
from pipeline.errors import UserError

RESULTS = 5  # of a search
PAGE = 20  # lines that ``open`` shows
MATCHES = 10  # that ``find`` shows
SNIPPET = 200  # characters of a line in results
CODE_SECONDS = 20

StartSandbox = Callable[[], Awaitable[Sandbox]]


def _tool(name: str, description: str, required: tuple[str, ...], **parameters: str) -> dict:
    properties = {key: {"type": type_} for key, type_ in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }


SEARCH = _tool("search", f"The {RESULTS} documents that fit the query best.", ("query",), query="string")
OPEN = _tool(
    "open", f"{PAGE} lines of a document, from a line on.", ("document",), document="string", line="integer"
)
FIND = _tool(
    "find", "Where a text occurs in a document.", ("document", "text"), document="string", text="string"
)
PYTHON = _tool("python", "Runs a Python program and returns what it prints.", ("code",), code="string")
TOOLS = (SEARCH, OPEN, FIND)


class SearchEpisode(Episode):
    """``start_sandbox`` gives the sandbox of the tool ``python``, started at its first call."""

    def __init__(
        self, corpus: Corpus, index: Index, turns: int, calls: int, start_sandbox: StartSandbox | None = None
    ):
        self._corpus, self._index = corpus, index
        self._max_turns, self._max_calls = turns, calls
        self._start_sandbox, self._sandbox = start_sandbox, None

    async def reset(self, task: Task) -> list[Message]:
        if task.truth["corpus"] != self._corpus.digest:
            raise UserError(
                f"task {task.id} was made from another search corpus than {self._corpus.name}: load that one "
                "or make the task again"
            )
        await self.close()
        self._task = task
        self._turns = self._calls = 0
        self._verdict: Verdict | None = None
        return list(task.messages)

    async def step(self, message: Message) -> Step:
        if self._verdict is not None:
            raise RuntimeError("the episode is over: reset it before another step")
        self._turns += 1
        if not message.get("tool_calls"):
            right = is_right(message, self._task)
            return self._end(float(right), "right" if right else "the answer is wrong")
        if self._turns >= self._max_turns:
            return self._end(0.0, f"no answer in {self._max_turns} turns")
        try:
            return await self._take_calls(message["tool_calls"])
        except MalformedCall as error:
            return self._end(0.0, str(error))
        except SandboxError as error:
            return self._end(None, f"the sandbox failed: {error}")

    async def verify(self) -> Verdict:
        return self._verdict or Verdict(0.0, "the episode ended before an answer")

    async def close(self) -> None:
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await sandbox.close()

    async def _take_calls(self, calls: Any) -> Step:
        results = []
        for call in calls if isinstance(calls, list) else [calls]:
            self._calls += 1
            if self._calls > self._max_calls:
                return self._end(0.0, f"more than {self._max_calls} tool calls")
            name, arguments = read_call(call, self._task.tools)
            result = {"role": "tool", "content": await self._call(name, arguments)}
            if "id" in call:
                result["tool_call_id"] = call["id"]
            results.append(result)
        return Step(results)

    async def _call(self, name: str, arguments: dict[str, Any]) -> str:
        if name == "search":
            return show_results(self._index.search(arguments["query"], RESULTS), arguments["query"])
        if name == "python":
            return await self._python(arguments["code"])
        document = self._corpus.documents.get(arguments["document"])
        if document is None:
            return f"there is no document {arguments['document']!r}"
        if name == "open":
            return show_page(document, arguments.get("line", 1))
        return show_matches(document, arguments["text"])

    async def _python(self, code: str) -> str:
        if self._start_sandbox is None:
            raise SandboxError("there is none for the tool python here")
        if self._sandbox is None:
            self._sandbox = await self._start_sandbox()
        await self._sandbox.write("/tmp/program.py", code.encode(errors="replace"))
        result = await self._sandbox.run("python3 /tmp/program.py", seconds=CODE_SECONDS, cwd="/tmp")
        if result.timed_out:
            return f"{result.output}\nstopped after {CODE_SECONDS} s"
        return (
            result.output if result.returncode == 0 else f"{result.output}\nexit status {result.returncode}"
        )

    def _end(self, reward: float | None, reason: str) -> Step:
        self._verdict = Verdict(reward, reason)
        return Step(done=True)


def is_right(message: Message, task: Task) -> bool:
    """Whether the last line of an assistant's text is an accepted name of the answer."""
    content = message.get("content")
    lines = [line for line in content.splitlines() if line.strip()] if isinstance(content, str) else []
    return bool(lines) and normal(lines[-1]) in task.truth["answers"]


def show_results(documents: list[Document], query: str) -> str:
    if not documents:
        return "no document has these words"
    asked = set(words(query))
    return "\n".join(f"{d.id} | {d.title} | {_best_line(d, asked)}" for d in documents)


def _best_line(document: Document, asked: set[str]) -> str:
    scores = [len(asked & set(words(line))) for line in document.lines]
    best = max(range(len(scores)), key=scores.__getitem__)  # the first of the best
    return f"line {best + 1}: {document.lines[best][:SNIPPET]}"


def show_page(document: Document, line: int) -> str:
    lines = document.lines
    if not 1 <= line <= len(lines):
        return f"{document.id} has the lines 1 to {len(lines)}"
    last = min(line + PAGE - 1, len(lines))
    shown = "\n".join(f"{number}: {lines[number - 1]}" for number in range(line, last + 1))
    return f"{document.title} ({document.id}), lines {line} to {last} of {len(lines)}\n{shown}"


def show_matches(document: Document, text: str) -> str:
    """Line and offset (in characters of the text, from 0) of each place; case and white space are free."""
    pattern = r"\s+".join(re.escape(part) for part in text.split())
    found = (
        list(itertools.islice(re.finditer(pattern, document.text, re.IGNORECASE), MATCHES)) if pattern else []
    )
    if not found:
        return f"{document.id} does not contain {text!r}"
    shown = []
    for match in found:
        line = document.text.count("\n", 0, match.start())
        start = document.text.rfind("\n", 0, match.start()) + 1
        begin = max(0, match.start() - start - SNIPPET // 2)
        snippet = document.lines[line][begin : begin + SNIPPET]
        shown.append(f"line {line + 1}, offset {match.start()}: {snippet}")
    return "\n".join(shown)


def read_call(call: Any, tools: tuple[dict, ...]) -> tuple[str, dict[str, Any]]:
    """Name and arguments of an OpenAI tool call. Raises ``MalformedCall`` where no tool can take it.

    A whole number may also come as text, which is how chat templates write arguments.
    """
    function = (call.get("function") or call) if isinstance(call, dict) else {}
    name, arguments = function.get("name"), function.get("arguments")
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    if not isinstance(name, str) or name not in schemas:
        raise MalformedCall(f"there is no tool {name!r}")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            raise MalformedCall(f"the arguments of {name} are not JSON") from None
    types = {key: value["type"] for key, value in schemas[name]["properties"].items()}
    if not isinstance(arguments, dict) or not set(schemas[name]["required"]) <= set(arguments) <= set(types):
        raise MalformedCall(f"{name} takes the arguments {', '.join(types)}")
    return name, {key: _typed(name, key, value, types[key]) for key, value in arguments.items()}


def _typed(name: str, key: str, value: Any, type_: str) -> Any:
    if type_ == "integer":
        if isinstance(value, str) and re.fullmatch(r"\s*\d{1,9}\s*", value):
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise MalformedCall(f"{key} of {name} is a whole number")
    if not isinstance(value, str):
        raise MalformedCall(f"{key} of {name} is a text")
    return value
