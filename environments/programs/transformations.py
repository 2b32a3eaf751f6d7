"""Problems about texts, lists and records: a few steps, one after the other."""

import random
from typing import Any

from environments.programs.problem import WORDS, Program, number_lists


def _texts(rng: random.Random, count: int = 9) -> list[list[Any]]:
    made = [[" ".join(rng.choices(WORDS, k=rng.randint(2, 7)))] for _ in range(count)]
    return [*made, [""], ["  two  spaces "]]


def _pipeline(
    rng: random.Random, stages: list[tuple[str, str]], variable: str, count: int
) -> tuple[str, str, str]:
    """Statement, steps and body of ``count`` of the stages, one after the other."""
    chosen = rng.sample(stages, count)
    said = "\n".join(f"{number}. {what}" for number, (what, _) in enumerate(chosen, 1))
    body = "\n".join(f"    {variable} = {how}" for _, how in chosen)
    steps = "; ".join(how for _, how in chosen)
    return said, steps, body


def strings(rng: random.Random) -> Program:
    k, shift = rng.randint(2, 4), rng.randint(1, 12)
    a, b = rng.sample("aeiorstln", 2)
    stages = [
        ("reverse every word, keeping the order of the words", "' '.join(w[::-1] for w in text.split())"),
        ("reverse the order of the words", "' '.join(text.split()[::-1])"),
        (
            f"drop the words shorter than {k} characters",
            f"' '.join(w for w in text.split() if len(w) >= {k})",
        ),
        (f"replace every {a!r} by {b!r}", f"text.replace({a!r}, {b!r})"),
        ("remove all vowels (aeiou, both cases)", "''.join(c for c in text if c.lower() not in 'aeiou')"),
        (
            f"make every {k}th character upper case, counting from 1",
            f"''.join(c.upper() if i % {k} == 0 else c for i, c in enumerate(text, 1))",
        ),
        (
            f"move every letter a-z forward by {shift} in the alphabet, after z comes a; leave other "
            f"characters",
            f"''.join(chr((ord(c) - 97 + {shift}) % 26 + 97) if 'a' <= c <= 'z' else c for c in text)",
        ),
        (
            "remove a character that equals the one before it",
            "''.join(c for i, c in enumerate(text) if i == 0 or c != text[i-1])",
        ),
        ("sort the words by length, equal lengths in their order", "' '.join(sorted(text.split(), key=len))"),
        ("append the number of characters, after a colon", "text + ':' + str(len(text))"),
    ]
    count = rng.randint(2, 4)
    said, steps, body = _pipeline(rng, stages, "text", count)
    return Program(
        f"Write a function f(text) that does the following to a string, in this order, and returns the "
        f"result (words are separated by white space and joined by one space):\n{said}",
        steps,
        f"def f(text):\n{body}\n    return text",
        _texts(rng),
        count + 1,
    )


def lists(rng: random.Random) -> Program:
    a, b, k, m = rng.randint(2, 9), rng.randint(-9, 9), rng.randint(2, 4), rng.randint(3, 9)
    stages = [
        (f"keep the numbers that are divisible by {k}", f"[n for n in x if n % {k} == 0]"),
        (f"drop the numbers below {b}", f"[n for n in x if n >= {b}]"),
        (f"replace every n by {a}*n + ({b})", f"[{a}*n + ({b}) for n in x]"),
        (
            f"replace every n by its remainder modulo {m} (as in Python, never negative)",
            f"[n % {m} for n in x]",
        ),
        ("sort from the largest to the smallest", "sorted(x, reverse=True)"),
        ("keep the first of equal numbers only", "list(dict.fromkeys(x))"),
        (f"keep every {k}th number, starting with the first", f"x[::{k}]"),
        ("replace every number by the sum of it and all before it", "[sum(x[:i+1]) for i in range(len(x))]"),
        (
            "replace the list by the differences of neighbours (each minus the one before)",
            "[q - p for p, q in zip(x, x[1:])]",
        ),
        (f"move the first {k} numbers to the end", f"x[{k}:] + x[:{k}]"),
        ("reverse the list", "x[::-1]"),
    ]
    count = rng.randint(2, 4)
    said, steps, body = _pipeline(rng, stages, "x", count)
    end, returned = rng.choice(
        (
            ("the list", "x"),
            ("the sum of the list", "sum(x)"),
            ("the largest number, or None of an empty list", "max(x) if x else None"),
            ("its length and its sum as a list of two", "[len(x), sum(x)]"),
        )
    )
    return Program(
        f"Write a function f(x) that does the following to a list of integers, in this "
        f"order:\n{said}\nand returns {end}.",
        f"{steps}; return {returned}",
        f"def f(x):\n{body}\n    return {returned}",
        number_lists(rng),
        count + 1,
    )


def records(rng: random.Random) -> Program:
    group, other = rng.sample(("city", "team", "kind", "colour"), 2)
    value = rng.choice(("points", "price", "age", "weight"))
    bound = rng.randint(5, 40)
    test, shown = rng.choice(
        (
            (f"r[{value!r}] >= {bound}", f"whose {value} is at least {bound}"),
            (f"r[{other!r}] != 'b'", f"whose {other} is not 'b'"),
            (f"r[{value!r}] % 2 == 0", f"whose {value} is even"),
        )
    )
    what, how = rng.choice(
        (
            (f"the sum of {value}", "sum(v)"),
            (f"the largest {value}", "max(v)"),
            ("how many there are", "len(v)"),
            (f"the smallest {value}", "min(v)"),
            (f"the average {value}, rounded down", "sum(v) // len(v)"),
        )
    )
    code = (
        f"def f(records):\n    groups = {{}}\n    for r in records:\n        if {test}:\n"
        f"            groups.setdefault(r[{group!r}], []).append(r[{value!r}])\n"
        f"    return {{key: {how} for key, v in groups.items()}}"
    )
    inputs = [
        [[{group: rng.choice("abc"), other: rng.choice("abc"), value: rng.randint(0, 60)} for _ in range(n)]]
        for n in (3, 4, 0, 1, 2, 4, 6, 8)
    ]
    return Program(
        f"Write a function f(records). Each record is a dict with the keys {group!r}, {other!r} and "
        f"{value!r}. Take the records {shown}, group them by {group!r}, and return a dict from each "
        f"{group} that occurs among them to {what} in its group.",
        f"filter by {test}, collect {value} by {group}, then {how}",
        code,
        inputs,
        4,
    )
