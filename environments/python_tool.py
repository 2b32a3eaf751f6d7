"""Questions that are hard by head and easy with a program: the policy has a ``python`` tool.

Every call runs a program of its own: nothing is left of the one before. The answer never enters the
sandbox, it is compared here.
"""

import json
import random

from environments.episode import MalformedCall, answer, call_message, read_call
from environments.interface import Draft, Environment, Episode, Message, Mode, Step, Task, Verdict
from environments.mathematics.reading import final_answer, read_number
from environments.python_problems import FAMILIES
from environments.sandbox.interface import Backend, SandboxError
from environments.snippets import Runner, runner

MAX_CALLS = 6
MAX_MESSAGES = 8
MAX_CODE = 8000  # characters
MAX_OUTPUT = 4000  # characters that the policy sees
SECONDS = 4  # of processor time a call

PYTHON = {
    "type": "function",
    "function": {
        "name": "python",
        "description": (
            "Run a Python 3 program and return what it prints, at most 4000 characters. Each call is a new "
            "program: variables of earlier calls are gone. Only the standard library, 4 seconds, no "
            "files, no "
            "network."
        ),
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "the whole program"}},
            "required": ["code"],
        },
    },
}

_PROGRAM = """
space = {"__name__": "__main__"}
try:
    exec(compile(task["code"], "program.py", "exec"), space)
except BaseException as error:
    place, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "program.py":
            place = f" in line {trace.tb_lineno}"
        trace = trace.tb_next
    print(f"{type(error).__name__}{place}: {error}")
"""


class PythonEpisode(Episode):
    """Tool calls, then one message with the answer; ``truth`` holds ``answer`` as text."""

    def __init__(self, runner: Runner):
        self._runner = runner

    async def reset(self, task: Task) -> list[Message]:
        self._task = task
        self._calls = self._messages = 0
        self._verdict: Verdict | None = None
        return list(task.messages)

    async def step(self, message: Message) -> Step:
        if self._verdict is not None:
            raise RuntimeError("the episode is over: reset it before another step")
        self._messages += 1
        calls = message.get("tool_calls")
        if not calls:
            return self._take_answer(message.get("content"))
        if self._messages > MAX_MESSAGES or not isinstance(calls, list):
            return self._end(
                0.0, f"more than {MAX_MESSAGES} messages" if isinstance(calls, list) else "bad calls"
            )
        try:
            return Step([await self._call(call) for call in calls])
        except MalformedCall as error:
            return self._end(0.0, str(error))
        except SandboxError as error:
            return self._end(None, str(error))

    async def _call(self, call: object) -> Message:
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise MalformedCall(f"more than {MAX_CALLS} tool calls")
        result = {"role": "tool", "content": await self._run(read_code(call, self._task.tools))}
        return result | ({"tool_call_id": call["id"]} if "id" in call else {})

    async def _run(self, code: str) -> str:
        if len(code) > MAX_CODE:
            return f"error: the program is longer than {MAX_CODE} characters"
        outcome = await self._runner.run(_PROGRAM, code, SECONDS)
        output = outcome.output
        if len(output) > MAX_OUTPUT:
            output = f"{output[: MAX_OUTPUT // 2]}\n...\n{output[-MAX_OUTPUT // 2 :]}"
        if outcome.timed_out or outcome.returncode:
            output += "\nerror: the program was ended (too much time or memory)"
        return output.strip() or "(nothing was printed)"

    def _take_answer(self, content: object) -> Step:
        said, right = final_answer(content), read_number(self._task.truth["answer"])
        if None not in (said, right) and read_number(said) == right:
            return self._end(1.0, "right")
        return self._end(0.0, "the answer is wrong")

    def _end(self, reward: float | None, reason: str) -> Step:
        self._verdict = Verdict(reward, reason)
        return Step(done=True)

    async def verify(self) -> Verdict:
        return self._verdict or Verdict(0.0, "there is no answer")


def read_code(call: object, tools: tuple[dict, ...]) -> str:
    """The program of a call, with its white space. Raises ``MalformedCall``."""
    read_call(call, tools)  # names the tool and has the one argument
    function = call.get("function") or call
    arguments = function["arguments"]
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments["code"], str):
        raise MalformedCall("code is text")
    return arguments["code"]


class PythonTool(Environment):
    """``backend`` is the sandbox that programs run in; without one it is a limited child process."""

    name = "python_tool"
    evaluation_only = ("josephus", "automaton")
    families = tuple(sorted(set(FAMILIES) - {"josephus", "automaton"}))

    def __init__(self, backend: Backend | None = None):
        self._runner = runner(backend)

    def draw(self, family: str, rng: random.Random) -> Draft:
        problem = FAMILIES[family](rng)
        space: dict = {}
        exec(compile(problem.code, family, "exec"), space)  # our own text: the oracle's program
        truth = {
            "answer": str(space["result"]), "code": f"{problem.code}\nprint(result)", "plan": problem.plan
        }  # fmt: skip
        prompt = {"role": "user", "content": f"{problem.prompt} End with the answer alone on the last line."}
        return Draft((prompt,), truth, 2, (PYTHON,))

    def episode(self) -> Episode:
        return PythonEpisode(self._runner)

    def oracle(self, task: Task, mode: Mode) -> list[Message]:
        truth, thinks = task.truth, mode != "off"
        return [
            call_message(truth["plan"] if thinks else None, "python", code=truth["code"]),
            answer(f"The program printed {truth['answer']}." if thinks else None, truth["answer"]),
        ]
