"""Families kept for evaluation."""

import random

from environments.programs.problem import WORDS, Program


def grid(rng: random.Random) -> Program:
    """A robot on a grid, kept for evaluation."""
    forward, left, right, back = rng.sample("FLRBXYUD", 4)
    size, wraps = rng.randint(4, 9), rng.random() < 0.5
    move = (
        f"x, y = (x + dx) % {size}, (y + dy) % {size}"
        if wraps
        else (f"x, y = min(max(x + dx, 0), {size - 1}), min(max(y + dy, 0), {size - 1})")
    )
    code = (
        f"def f(commands):\n    x, y, dx, dy = 0, 0, 0, 1\n    for c in commands:\n        if c == "
        f"{left!r}:\n            dx, dy = -dy, dx\n"
        f"        elif c == {right!r}:\n            dx, dy = dy, -dx\n        elif c == {back!r}:\n    "
        f"        dx, dy = -dx, -dy\n"
        f"        elif c == {forward!r}:\n            {move}\n    return [x, y]"
    )
    letters = forward * 4 + left + right + back
    inputs = [["".join(rng.choices(letters, k=n))] for n in (6, 8, 0, 1, 12, 20, 30, 45, 60)]
    edge = (
        ("leaves the grid on one side and comes in on the opposite side")
        if wraps
        else "stays where it is when it would leave the grid"
    )
    return Program(
        f"A robot stands at (0, 0) of a grid of {size} by {size} cells (x and y from 0 to {size - 1}) "
        f"and looks up (towards larger y). {forward!r} moves it one cell forward, {left!r} turns it "
        f"left, {right!r} turns it right, {back!r} turns it around. At the edge it {edge}. Write a "
        f"function f(commands) that returns [x, y] at the end.",
        "position and direction; a turn to the left maps (dx, dy) to (-dy, dx)",
        code,
        inputs,
        6,
    )


def formatting(rng: random.Random) -> Program:
    """Text tables, kept for evaluation."""
    width, fill = rng.randint(6, 14), rng.choice("._-*=")
    side, method = rng.choice(
        (
            ("left", "ljust"),
            ("right", "rjust"),
            ("middle, with one more filler on the left side when the number of fillers is odd", None),
        )
    )
    pad = (
        f"w.{method}({width}, {fill!r})"
        if method
        else (f"{fill!r} * (({width} - len(w) + 1) // 2) + w + {fill!r} * (({width} - len(w)) // 2)")
    )
    code = (
        f"def f(words):\n    lines = []\n    for w in words:\n        w = w[:{width}]\n        "
        f"lines.append({pad})\n    return lines"
    )
    inputs = [[rng.choices(WORDS + ("extraordinarily", ""), k=n)] for n in (2, 3, 0, 1, 4, 5, 6, 7, 8)]
    return Program(
        f"Write a function f(words) that returns a list of lines, one a word: the word cut to {width} "
        f"characters if it is longer, otherwise filled up with {fill!r} to {width} characters, the "
        f"word standing at the {side}.",
        f"cut to {width}, then fill",
        code,
        inputs,
        4,
    )
