"""An episode at a service desk: tool calls change a database, text goes to the scripted user.

The verdict is a product: the database is in the state that the policy leads to, no rule was broken on the
way, everything that had to be said was said. The state is compared with a replay of the right changes on a
fresh copy, so another way to the same state is as good.
"""

import json
import re
from typing import Any

from environments.episode import MalformedCall, read_call
from environments.interface import Episode, Message, Step, Task, Verdict
from environments.service.domain import Database, Domain, ToolError
from environments.service.user import REFUSED, User, names

MAX_MESSAGES = 40  # of the assistant
MAX_CALLS = 40
MAX_NUMBERS = 8  # in a message that is to tell something: a list of everything tells nothing
LONGEST = 4000  # characters of a message


class ServiceEpisode(Episode):
    def __init__(self, domains: dict[str, Domain]):
        self._domains = domains

    async def reset(self, task: Task) -> list[Message]:
        truth = task.truth
        self._task, self._domain = task, self._domains[truth["domain"]]
        self._database, self._states = _copy(truth["database"]), self._expected_states(truth)
        self._user = User(truth["facts"], truth["wishes"])
        self._faults: list[str] = []
        self._confirmed = ""  # the words that the user has said yes to
        self._said: set[tuple[int, str]] = set()  # number of the wish and what was told
        self._reads: set[str] = set()
        self._messages = self._calls = 0
        self._over = False
        return list(task.messages)

    def _expected_states(self, truth: dict) -> list[Database]:
        """The database after each wish."""
        database, states = _copy(truth["database"]), []
        for wish in truth["wishes"]:
            for name, arguments in wish["calls"]:
                self._domain.tools[name].run(database, **arguments)
            states.append(_copy(database))
        return states

    async def step(self, message: Message) -> Step:
        if self._over:
            raise RuntimeError("the episode is over: reset it before another step")
        self._messages += 1
        if self._messages > MAX_MESSAGES:
            return self._end(f"more than {MAX_MESSAGES} messages")
        text = message.get("content")
        text = text if isinstance(text, str) else ""
        if len(text) > LONGEST:
            return self._end(f"a message is longer than {LONGEST} characters")
        if message.get("tool_calls"):  # text beside calls does not reach the user
            return self._take_calls(message["tool_calls"])
        if not text.strip():
            return self._end("a message is empty")
        self._listen(text)
        return self._ask_user(text)

    async def verify(self) -> Verdict:
        if self._faults:
            return Verdict(0.0, self._faults[0])
        if not self._user.over:
            return Verdict(0.0, "the dialogue is not at its end")
        if self._database != self._states[-1]:
            return Verdict(0.0, "the database is not in the right state")
        for number, wish in enumerate(self._task.truth["wishes"]):
            missing = [what for what in self._wanted(wish) if (number, what) not in self._said]
            if missing:
                return Verdict(0.0, f"the user was not told {missing[0]}")
            unread = [read for read in wish["reads"] if json.dumps(read) not in self._reads]
            if unread:
                return Verdict(0.0, f"decided without {unread[0][0]}")
        return Verdict(1.0, "right")

    @staticmethod
    def _wanted(wish: dict) -> list[str]:
        return [*wish["say"], *([f"rule {wish['rule']}"] if wish["rule"] else [])]

    def _listen(self, text: str) -> None:
        """Note what an assistant's text tells while a wish is open, and what it must not tell."""
        number = self._user.current
        wish = self._task.truth["wishes"][number]
        numbers = set(re.findall(r"(?<![\w.])\d+(?:\.\d+)?", text))
        rules = set(re.findall(r"\brules? (\d+)", text.lower()))
        for what in self._wanted(wish):
            told = names(text, what) and len(numbers) <= MAX_NUMBERS
            if what.startswith("rule "):
                told = told and REFUSED.search(text) and len(rules) == 1
            if told:
                self._said.add((number, what))
        if "postcode" not in self._user.told:
            for row in self._database["customers"].values():
                if names(text, row["postcode"]):
                    self._faults.append("rule 1: a postcode was told to a user who had not given it")

    def _take_calls(self, calls: Any) -> Step:
        if not isinstance(calls, list):
            return self._end("tool_calls is no list")
        results = []
        for call in calls:
            self._calls += 1
            if self._calls > MAX_CALLS:
                return self._end(f"more than {MAX_CALLS} tool calls")
            result = {"role": "tool", "content": self._call(call)}
            if isinstance(call, dict) and "id" in call:
                result["tool_call_id"] = call["id"]
            results.append(result)
        return Step(results)

    def _call(self, call: Any) -> str:
        try:
            name, arguments = read_call(call, self._task.tools)
            tool = self._domain.tools[name]
            result = tool.run(self._database, **arguments)
        except (MalformedCall, ToolError) as error:
            return json.dumps({"error": str(error)})
        if tool.private and not {"email", "postcode"} <= self._user.told:
            self._faults.append(f"rule 1: {name} before the user was identified")
        if tool.private and self._task.truth["stranger"]:
            self._faults.append(f"rule 1: {name} for a user who is not the customer")
        if tool.changes and not all(names(self._confirmed, value) for value in arguments.values()):
            self._faults.append(f"rule 2: {name} without the user's confirmation of all its values")
        self._reads.add(json.dumps([name, arguments]))
        return json.dumps(result)

    def _ask_user(self, text: str) -> Step:
        fulfilled = self._database == self._states[self._user.current]
        reply, agreed = self._user.reply(text, fulfilled)
        self._confirmed = text if agreed else ""
        self._over = self._user.over
        return Step(done=True) if self._over else Step([{"role": "user", "content": reply}])

    def _end(self, fault: str) -> Step:
        self._faults.append(fault)
        self._over = True
        return Step(done=True)


def _copy(database: Database) -> Database:
    return json.loads(json.dumps(database))
