"""Problems with nested data and small languages."""

import random
from typing import Any

from environments.programs.problem import Program


def _nested(rng: random.Random, depth: int) -> Any:
    if depth == 0 or rng.random() < 0.45:
        return rng.randint(-9, 9)
    return [_nested(rng, depth - 1) for _ in range(rng.randint(0, 4))]


def recursion(rng: random.Random) -> Program:
    if rng.random() < 0.5:
        a, b, p, q, m = (
            rng.randint(0, 9),
            rng.randint(0, 9),
            rng.randint(1, 5),
            rng.randint(1, 5),
            rng.randint(50, 999),
        )
        code = (
            f"def f(n):\n    x, y = {a}, {b}\n    for _ in range(n):\n        x, y = y, ({p} * y + {q} "
            f"* x) % {m}\n    return x"
        )
        return Program(
            f"Let a(0) = {a}, a(1) = {b} and a(n) = ({p}*a(n-1) + {q}*a(n-2)) mod {m}. Write a "
            f"function f(n) that returns a(n), for n from 0 to 2000.",
            "keep two neighbours and move on n times",
            code,
            [[n] for n in (2, 5, 0, 1, 3, 10, 57, 200, 1999)],
            3,
        )
    add, factor, empty = rng.randint(0, 5), rng.choice((-2, -1, 1, 2, 3, 10)), rng.randint(-9, 9)
    code = (
        f"def f(x):\n    if isinstance(x, int):\n        return x + {add}\n    if not x:\n        "
        f"return {empty}\n"
        f"    return {factor} * sum(f(part) for part in x)"
    )
    inputs = [[[rng.randint(-9, 9), [_nested(rng, 2), 1], []]] for _ in range(3)]
    inputs += [[[_nested(rng, 4) for _ in range(rng.randint(1, 4))]] for _ in range(6)] + [
        [[]],
        [7],
        [[[[]]]],
    ]
    return Program(
        f"The value of an integer n is n + {add}. The value of an empty list is {empty}. The value of "
        f"any other list is {factor} times the sum of the values of its elements. Write a function "
        f"f(x) that returns the value of x, an integer or a list nested to any depth.",
        "an integer, an empty list, else recurse",
        code,
        inputs,
        4,
    )


def parsing(rng: random.Random) -> Program:
    if rng.random() < 0.5:
        pair, item = rng.sample(";|,&", 2)
        equals = rng.choice((":", "=", "->"))
        code = (
            f"def f(text):\n    found = {{}}\n    for part in text.split({pair!r}):\n        key, "
            f"sign, value = part.partition({equals!r})\n"
            f"        if not sign:\n            continue\n        key = key.strip()\n        values = "
            f"[v.strip() for v in value.split({item!r})]\n"
            "        found[key] = [int(v) if v.lstrip('-').isdigit() else v for v in values]\n    "
            "return found"
        )
        inputs = []
        for n in (2, 3, 1, 0, 4, 5, 2, 3, 6):
            parts = [
                f"{rng.choice('abcdef')} {equals} "
                + item.join(rng.choice(("7", "-3", "red", " 12", "x1")) for _ in range(rng.randint(1, 3)))
                for _ in range(n)
            ]
            inputs.append([pair.join([*parts, *(["nothing"] if rng.random() < 0.3 else [])])])
        return Program(
            f"A text consists of parts separated by {pair!r}. A part has the form key{equals}values, "
            f"the values separated by {item!r}; parts without {equals!r} are skipped. White space "
            f"around keys and values does not count. Write a function f(text) that returns a dict from "
            f"each key to the list of its values, whole numbers (an optional minus and digits) as int "
            f"and all others as str. The last part with a key counts.",
            f"split at {pair}, partition at {equals}, split at {item}, strip",
            code,
            inputs,
            5,
        )
    plus, times = rng.sample("@#&~%", 2)
    high = rng.choice((plus, times))
    low = times if high == plus else plus
    how = {plus: "a + b", times: "a * b"}
    code = (
        f"def f(text):\n    tokens = text.replace('(', ' ( ').replace(')', ' ) ').split()[::-1]\n    "
        f"def level(sign, inner, work):\n"
        "        a = inner()\n        while tokens and tokens[-1] == sign:\n            tokens.pop()\n "
        "           b = inner()\n            a = work(a, b)\n        return a\n"
        "    def atom():\n        token = tokens.pop()\n        if token != '(':\n            return "
        "int(token)\n        value = low()\n        tokens.pop()\n        return value\n"
        f"    def high():\n        return level({high!r}, atom, lambda a, b: {how[high]})\n    def "
        f"low():\n        return level({low!r}, high, lambda a, b: {how[low]})\n    return low()"
    )
    inputs = [[_expression(rng, plus, times, depth)] for depth in (1, 2, 0, 1, 2, 2, 3, 3, 3)]
    return Program(
        f"In an expression {plus} means addition and {times} means multiplication of whole numbers; "
        f"{high} binds more strongly than {low}; round brackets group. Numbers and operators are "
        f"separated by spaces, brackets need no spaces. Write a function f(text) that returns the "
        f"value of the expression.",
        f"two levels: {low} above {high} above numbers and brackets",
        code,
        inputs,
        6,
    )


def _expression(rng: random.Random, plus: str, times: str, depth: int) -> str:
    parts = []
    for _ in range(rng.randint(2, 4)):
        bracket = depth > 0 and rng.random() < 0.4
        parts.append(f"({_expression(rng, plus, times, depth - 1)})" if bracket else str(rng.randint(0, 12)))
    return "".join(part + f" {rng.choice((plus, times))} " for part in parts[:-1]) + parts[-1]
