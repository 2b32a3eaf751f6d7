"""Problems that need an algorithm."""

import random

from environments.programs.problem import Program, number_lists


def algorithms(rng: random.Random) -> Program:
    return rng.choice((_coins, _merge, _window, _schedule))(rng)


def _coins(rng: random.Random) -> Program:
    coins = sorted(rng.sample(range(2, 26), rng.randint(3, 4)))
    code = (
        f"def f(total):\n    best = [0] + [None] * total\n    for n in range(1, total + 1):\n"
        f"        found = [best[n - c] for c in {coins} if c <= n and best[n - c] is not None]\n"
        f"        best[n] = min(found) + 1 if found else None\n    return best[total]"
    )
    return Program(
        f"There are coins of the values {', '.join(map(str, coins))}, as many as needed. Write a "
        f"function f(total) that returns the least number of coins that pay exactly total (a whole "
        f"number from 0 to 500), or None if that is impossible.",
        "least number for every amount up to the total",
        code,
        [
            [n]
            for n in (
                coins[0] + coins[1],
                rng.randint(20, 60),
                0,
                1,
                coins[-1],
                *rng.sample(range(30, 250), 4),
            )
        ],
        5,
    )


def _merge(rng: random.Random) -> Program:
    gap = rng.randint(0, 5)
    code = (
        f"def f(spans):\n    merged = []\n    for low, high in sorted(spans):\n        if merged and "
        f"low - merged[-1][1] <= {gap}:\n"
        "            merged[-1][1] = max(merged[-1][1], high)\n        else:\n            "
        "merged.append([low, high])\n    return merged"
    )
    inputs = []
    for n in (3, 4, 0, 1, 2, 5, 6, 8, 10):
        starts = [rng.randint(0, 60) for _ in range(n)]
        inputs.append([[[s, s + rng.randint(0, 9)] for s in starts]])
    return Program(
        f"Write a function f(spans) that takes a list of spans [low, high] with low <= high and joins "
        f"spans that overlap or whose distance (low of the later minus high of the earlier) is at most "
        f"{gap}. Return the joined spans as lists, sorted.",
        f"sort, then join while the distance is at most {gap}",
        code,
        inputs,
        4,
    )


def _window(rng: random.Random) -> Program:
    limit, word = rng.randint(5, 60), rng.choice(("longest", "shortest"))
    bound = f"<= {limit}" if word == "longest" else f">= {limit}"
    best = "max" if word == "longest" else "min"
    code = (
        f"def f(x):\n    found = [j - i for i in range(len(x)) for j in range(i + 1, len(x) + 1) if "
        f"sum(x[i:j]) {bound}]\n"
        f"    return {best}(found) if found else 0"
    )
    shown = f"at most {limit}" if word == "longest" else f"at least {limit}"
    return Program(
        f"Write a function f(x) that returns the length of the {word} non-empty run of neighbouring "
        f"numbers in the list of integers x whose sum is {shown}, or 0 if there is none. Numbers may "
        f"be negative.",
        f"try all runs, keep those with a sum {bound}",
        code,
        number_lists(rng, 10),
        4,
    )


def _schedule(rng: random.Random) -> Program:
    rest = rng.randint(0, 4)
    code = (
        f"def f(jobs):\n    count, free = 0, None\n    for start, end in sorted(jobs, key=lambda job: "
        f"job[1]):\n"
        f"        if free is None or start >= free + {rest}:\n            count, free = count + 1, "
        f"end\n    return count"
    )
    inputs = []
    for n in (3, 4, 0, 1, 5, 7, 9, 12, 15):
        starts = [rng.randint(0, 40) for _ in range(n)]
        inputs.append([[[s, s + rng.randint(1, 9)] for s in starts]])
    return Program(
        f"A machine does one job at a time and rests for {rest} hours between the end of a job and the "
        f"start of the next. Write a function f(jobs) that takes a list of jobs [start, end] with "
        f"fixed times and returns how many jobs it can do at most.",
        "always take the job that ends first",
        code,
        inputs,
        5,
    )
