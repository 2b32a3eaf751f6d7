"""Episodes that several environments share: one message, or user turns with one exact answer each and tools
in between.
"""

import json
from typing import Any

from environments.interface import Episode, Message, Step, Task, Verdict

CORRECTED = 0.5  # reward when an answer was right only after the user said no
WRONG = "no, again"
MAX_CALLS = 8  # tool calls in an episode


class MalformedCall(Exception):
    """A tool call that no tool can take; it ends the episode with reward 0."""


class OneMessageEpisode(Episode):
    """Judges one message: ``read`` finds the answer in its text, None where there is none, and ``judge``
    judges it. A message that calls tools has no answer.
    """

    async def reset(self, task: Task) -> list[Message]:
        self.task, self._answer, self._over = task, None, False
        return list(task.messages)

    async def step(self, message: Message) -> Step:
        if self._over:
            raise RuntimeError("the episode is over: reset it before another step")
        self._over = True
        if not message.get("tool_calls"):
            self._answer = self.read(message.get("content"))
        return Step(done=True)

    async def verify(self) -> Verdict:
        if self._answer is None:
            return Verdict(0.0, "there is no single final answer")
        return await self.judge(self._answer)

    def read(self, content: Any) -> str | None:
        raise NotImplementedError

    async def judge(self, said: str) -> Verdict:
        raise NotImplementedError


class ScriptedEpisode(Episode):
    """Asks the turns of ``task.truth`` in order and compares each final answer.

    ``truth`` holds ``answers`` (one a turn), ``follow_ups`` (the user's text before each further turn)
    and ``retries`` (wrong answers that the user sends back, over the whole episode). A wrong answer
    beyond them ends the episode.
    """

    async def reset(self, task: Task) -> list[Message]:
        self.task = task
        self._turn = self._wrong = self._calls = 0
        self._verdict: Verdict | None = None
        return list(task.messages)

    async def step(self, message: Message) -> Step:
        if self._verdict is not None:
            raise RuntimeError("the episode is over: reset it before another step")
        try:
            if message.get("tool_calls"):
                return self._take_calls(message["tool_calls"])
        except MalformedCall as error:
            return self._end(0.0, str(error))
        return self._take_answer(final_answer(message.get("content")))

    async def verify(self) -> Verdict:
        return self._verdict or Verdict(0.0, "the episode ended before the last answer")

    def call(self, name: str, arguments: dict[str, str]) -> str:
        """The result of a well-formed call, as text. Environments with tools define it."""
        raise MalformedCall(f"there is no tool {name!r}")

    def _take_calls(self, calls: list[dict]) -> Step:
        results = []
        for call in calls:
            self._calls += 1
            if self._calls > MAX_CALLS:
                return self._end(0.0, f"more than {MAX_CALLS} tool calls")
            name, arguments = read_call(call, self.task.tools)
            result = {"role": "tool", "content": self.call(name, arguments)}
            if "id" in call:
                result["tool_call_id"] = call["id"]
            results.append(result)
        return Step(results)

    def _take_answer(self, answer: str) -> Step:
        truth = self.task.truth
        if answer == normal(truth["answers"][self._turn]):
            self._turn += 1
            if self._turn == len(truth["answers"]):
                return self._end(CORRECTED if self._wrong else 1.0, "corrected" if self._wrong else "right")
            return Step([{"role": "user", "content": truth["follow_ups"][self._turn - 1]}])
        self._wrong += 1
        if self._wrong > truth.get("retries", 0):
            return self._end(0.0, f"turn {self._turn + 1}: the answer is wrong")
        return Step([{"role": "user", "content": WRONG}])

    def _end(self, reward: float, reason: str) -> Step:
        self._verdict = Verdict(reward, reason)
        return Step(done=True)


def final_answer(content: Any) -> str:
    """The last line of an assistant's text that is not empty, with white space made uniform."""
    if not isinstance(content, str):
        return ""
    lines = [line for line in content.splitlines() if line.strip()]
    return normal(lines[-1]) if lines else ""


def normal(text: str) -> str:
    return " ".join(text.split())


def read_call(call: Any, tools: tuple[dict, ...]) -> tuple[str, dict[str, str]]:
    """Name and arguments (as text) of an OpenAI tool call whose arguments are an object or its JSON.

    Raises ``MalformedCall`` when it names no tool of ``tools`` or has other arguments than that tool takes. A
    schema that does not say which are required wants all of them.
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
    known = set(schemas[name]["properties"])
    required = set(schemas[name].get("required", known))
    if not isinstance(arguments, dict) or not required <= set(arguments) <= known:
        raise MalformedCall(f"{name} takes the arguments {', '.join(sorted(known))}")
    return name, {key: normal(str(value)) for key, value in arguments.items()}


def tool_schema(name: str, *parameters: str) -> dict:
    """An OpenAI function schema whose parameters are all required text, as short as it can be."""
    properties = {parameter: {"type": "string"} for parameter in parameters}
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
    }


def answer(steps: str | None, content: str) -> Message:
    """An assistant message that answers; ``steps`` is its thinking, None without any."""
    thinking = {} if steps is None else {"reasoning_content": steps}
    return {"role": "assistant", "content": content, **thinking}


def call_message(steps: str | None, name: str, **arguments: str) -> Message:
    """An assistant message with one tool call."""
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {**answer(steps, ""), "tool_calls": [call]}
