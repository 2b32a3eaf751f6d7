"""Questions answered with tools: a calculator, a table of units, a calendar; one call or several."""

import datetime
import random
import re

from environments.episode import ScriptedEpisode, answer, call_message, tool_schema
from environments.interface import Draft, Environment, Episode, Message, Mode, Task

CALC = tool_schema("calc", "e")
UNIT = tool_schema("unit", "e")
DAY = tool_schema("day", "d")

UNITS = {
    "h/min": 60, "min/s": 60, "day/h": 24, "week/day": 7, "ft/in": 12, "yd/ft": 3,
    "kg/g": 1000, "km/m": 1000, "m/cm": 100,
}  # fmt: skip
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def calculate(expression: str) -> str:
    """The value of ``a+b``, ``a-b`` or ``a*b`` for whole numbers, or what is wrong with the expression."""
    parts = re.fullmatch(r"(-?\d{1,12})([+*-])(-?\d{1,12})", expression.replace(" ", ""))
    if parts is None:
        return "error: a+b, a-b or a*b"
    a, sign, b = int(parts[1]), parts[2], int(parts[3])
    return str(a + b if sign == "+" else a - b if sign == "-" else a * b)


def weekday(date: str) -> str:
    """``2024-03-05`` to ``tue``."""
    try:
        return DAYS[datetime.date.fromisoformat(date).weekday()]
    except ValueError:
        return "error: year-month-day"


class ToolEpisode(ScriptedEpisode):
    def call(self, name: str, arguments: dict[str, str]) -> str:
        if name == "calc":
            return calculate(arguments["e"])
        if name == "day":
            return weekday(arguments["d"])
        return str(UNITS.get(arguments["e"], "error: unknown units"))


def _draft(prompt: str, calls: list[list], result: str, *tools: dict) -> Draft:
    """``calls`` are the tool name and arguments of each call that the oracle makes."""
    truth = {"answers": [result], "calls": calls}
    return Draft(({"role": "user", "content": prompt},), truth, len(calls), tools)


def _calc(rng: random.Random) -> Draft:
    expression = f"{rng.randint(100, 999)}{rng.choice('+-*')}{rng.randint(10, 99)}"
    return _draft(f"{expression}=", [["calc", {"e": expression}]], calculate(expression), CALC)


def _chain(steps: int):
    """``(47*23)+512=`` in as many calls as it has operators."""

    def draw(rng: random.Random) -> Draft:
        value, prompt, calls = str(rng.randint(10, 99)), "", []
        prompt = value
        for step in range(steps):
            part = f"{rng.choice('+-*' if step == 0 else '+-')}{rng.randint(10, 99)}"
            calls.append(["calc", {"e": value + part}])
            value = calculate(value + part)
            prompt = f"({prompt}{part})" if step < steps - 1 else prompt + part
        return _draft(f"{prompt}=", calls, value, CALC)

    return draw


def _units(rng: random.Random) -> Draft:
    pair, factor = rng.choice(list(UNITS.items()))
    amount = rng.randint(2, 99)
    calls = [["unit", {"e": pair}], ["calc", {"e": f"{amount}*{factor}"}]]
    return _draft(f"{amount} {pair}", calls, str(amount * factor), UNIT, CALC)


def _calendar(rng: random.Random) -> Draft:
    date = datetime.date(1970, 1, 1) + datetime.timedelta(rng.randrange(36_525))
    return _draft(f"day of {date}", [["day", {"d": str(date)}]], weekday(str(date)), DAY)


class Tools(Environment):
    name = "tools"
    families = ("calc", "chain", "units", "calendar")
    evaluation_only = ("chain3",)
    _draws = {"calc": _calc, "chain": _chain(2), "chain3": _chain(3), "units": _units, "calendar": _calendar}

    def draw(self, family: str, rng: random.Random) -> Draft:
        return self._draws[family](rng)

    def episode(self) -> Episode:
        return ToolEpisode()

    def oracle(self, task: Task, mode: Mode) -> list[Message]:
        """Names what to call, calls it, and takes the last result as the answer."""
        thinks = mode != "off"
        messages = [
            call_message(" ".join(arguments.values()) if thinks else None, name, **arguments)
            for name, arguments in task.truth["calls"]
        ]
        result = task.truth["answers"][0]
        return [*messages, answer(result if thinks else None, result)]

    def mistake(self, task: Task, mode: Mode, rng: random.Random) -> Message | None:
        """The first call with an argument that the tool refuses; units, whose chats are long, have none."""
        name, arguments = task.truth["calls"][0]
        if name == "unit":
            return None
        spoiled = {key: value[: max(1, len(value) - rng.randint(1, 3))] for key, value in arguments.items()}
        if name == "calc":
            spoiled = {"e": re.sub(r"[+*-]", rng.choice(["x", "/", " "]), arguments["e"])}
        return call_message(None if mode == "off" else " ".join(spoiled.values()), name, **spoiled)
