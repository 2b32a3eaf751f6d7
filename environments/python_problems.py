"""Problems for the Python tool: large numbers, searches, simulations, with the program that solves each."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class ToolProblem:
    prompt: str
    plan: str  # what the oracle thinks before it calls
    code: str  # sets ``result``; whole numbers only


def power_digits(rng: random.Random) -> ToolProblem:
    a, b, add = rng.randint(3, 99), rng.randint(120, 700), rng.randint(1, 999)
    what, expression = rng.choice(
        (
            ("the sum of the digits", "sum(map(int, digits))"),
            ("the number of zeros among the digits", "digits.count('0')"),
            (
                "the number of different pairs of neighbouring digits",
                "len({digits[i:i+2] for i in range(len(digits)-1)})",
            ),
        )
    )
    return ToolProblem(
        f"What is {what} of {a}^{b} + {add}?",
        "The number is too long to write down; let Python do it.",
        f"digits = str({a}**{b} + {add})\nresult = {expression}",
    )


def conditional_sum(rng: random.Random) -> ToolProblem:
    top, a, b, c = rng.randint(500, 2000), rng.randint(3, 17), rng.randint(3, 17), rng.randint(2, 9)
    power = rng.choice((1, 2, 3))
    shown = {1: "n", 2: "the squares n^2", 3: "the cubes n^3"}[power]
    return ToolProblem(
        f"Add up {shown} of all whole numbers n from 1 to {top} that are divisible by {a} or leave the "
        f"remainder "
        f"{c % b} when divided by {b}, but whose last digit is not {c}. What is the sum?",
        "Many cases overlap; a loop over all n is safest.",
        f"result = sum(n**{power} for n in range(1, {top + 1}) if (n % {a} == 0 or n % {b} == {c % b}) "
        f"and n % 10 != {c})",
    )


def prime_count(rng: random.Random) -> ToolProblem:
    low = rng.randint(100, 1500)
    high, modulus = low + rng.randint(200, 700), rng.randint(3, 12)
    rest = rng.choice([r for r in range(1, modulus) if _coprime(r, modulus)])
    what, end = rng.choice(
        (("How many primes", "len(found)"), ("What is the sum of the primes", "sum(found)"))
    )
    return ToolProblem(
        f"{what} p with {low} < p < {high} that leave the remainder {rest} when divided by {modulus}?",
        "A sieve finds the primes.",
        f"sieve = bytearray([1]) * {high}\n"
        f"for p in range(2, int({high}**0.5) + 1):\n"
        f"    if sieve[p]:\n"
        f"        sieve[p*p::p] = bytes(len(range(p*p, {high}, p)))\n"
        f"found = [p for p in range({low + 1}, {high}) if sieve[p] and p % {modulus} == {rest}]\n"
        f"result = {end}",
    )


def _coprime(a: int, b: int) -> bool:
    while b:
        a, b = b, a % b
    return a == 1


def orbit(rng: random.Random) -> ToolProblem:
    modulus, a, b, start = (
        rng.randint(200, 1500),
        rng.randint(2, 60),
        rng.randint(1, 200),
        rng.randint(0, 199),
    )
    return ToolProblem(
        f"Start with x = {start} and replace x again and again by the remainder of {a}x^2 + {b} "
        f"divided by {modulus}. How many "
        "different values does x take, the first included?",
        "Follow the sequence until a value comes back.",
        f"x, seen = {start}, set()\n"
        f"while x not in seen:\n"
        f"    seen.add(x)\n"
        f"    x = ({a}*x*x + {b}) % {modulus}\n"
        f"result = len(seen)",
    )


def smallest(rng: random.Random) -> ToolProblem:
    divisor, low = rng.randint(7, 60), rng.randint(100, 20_000)
    example = divisor * rng.randint(low // divisor + 50, low // divisor + 900)  # so that there is one
    digits = sum(map(int, str(example)))
    return ToolProblem(
        f"What is the smallest whole number above {low} that is divisible by {divisor} and whose "
        f"digits add up to {digits}?",
        "Go through the multiples.",
        f"n = {low} // {divisor} * {divisor} + {divisor}\n"
        f"while sum(map(int, str(n))) != {digits}:\n"
        f"    n += {divisor}\n"
        f"result = n",
    )


def calendar_count(rng: random.Random) -> ToolProblem:
    first = rng.randint(1600, 2200)
    years, day, weekday = rng.randint(15, 50), rng.randint(1, 28), rng.randrange(7)
    name = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")[weekday]
    return ToolProblem(
        f"In the Gregorian calendar, how many times is day {day} of a month a {name} in the years {first} to "
        f"{first + years} (both included)?",
        "Count with datetime: Monday is 0.",
        f"from datetime import date\n"
        f"result = sum(date(y, m, {day}).weekday() == {weekday} for y in range({first}, "
        f"{first + years + 1}) for m in range(1, 13))",
    )


def coins(rng: random.Random) -> ToolProblem:
    values = sorted(rng.sample(range(2, 40), rng.randint(4, 6)))
    total = rng.randint(120, 400)
    return ToolProblem(
        f"In how many ways can {total} be paid with coins of the values {', '.join(map(str, values))}, "
        f"if there are as many "
        "as needed of each and their order does not matter?",
        "Count the ways coin by coin.",
        f"ways = [1] + [0] * {total}\n"
        f"for coin in {values}:\n"
        f"    for amount in range(coin, {total + 1}):\n"
        f"        ways[amount] += ways[amount - coin]\n"
        f"result = ways[{total}]",
    )


def walls(rng: random.Random) -> ToolProblem:
    width, height = rng.randint(9, 14), rng.randint(9, 14)
    blocked = sorted({(rng.randrange(1, width), rng.randrange(1, height)) for _ in range(rng.randint(6, 14))})
    blocked = [cell for cell in blocked if cell != (width - 1, height - 1)]
    shown = ", ".join(f"({x},{y})" for x, y in blocked)
    return ToolProblem(
        f"A token moves on the cells (x,y) with 0 <= x < {width} and 0 <= y < {height}, each step one "
        f"to the right or one up, "
        f"and never enters the cells {shown}. How many ways lead from (0,0) to ({width - 1},{height - 1})?",
        "Ways to a cell are the ways to its left and lower neighbours together.",
        f"blocked = {set(blocked)}\n"
        f"ways = {{}}\n"
        f"for x in range({width}):\n"
        f"    for y in range({height}):\n"
        f"        ways[x, y] = 0 if (x, y) in blocked else 1 if x == y == 0 else ways.get((x-1, y), 0) "
        f"+ ways.get((x, y-1), 0)\n"
        f"result = ways[{width - 1}, {height - 1}]",
    )


def recurrence(rng: random.Random) -> ToolProblem:
    a, b, p, q, r = (rng.randint(1, 9) for _ in range(5))
    n, modulus = rng.randint(150, 900), rng.randint(1000, 99_999)
    return ToolProblem(
        f"Let a(0) = {a}, a(1) = {b} and a(n) = {p}a(n-1) + {q}a(n-2) + {r}n. What is the remainder of "
        f"a({n}) divided by {modulus}?",
        "Compute the terms modulo the number.",
        f"x, y = {a}, {b}\n"
        f"for n in range(2, {n + 1}):\n"
        f"    x, y = y, ({p}*y + {q}*x + {r}*n) % {modulus}\n"
        f"result = y % {modulus}",
    )


def josephus(rng: random.Random) -> ToolProblem:
    people, step, left = rng.randint(50, 400), rng.randint(3, 40), rng.randint(1, 3)
    which = {1: "the last one", 2: "the last but one", 3: "the third from the end"}[left]
    return ToolProblem(
        f"{people} people with the numbers 1 to {people} stand in a circle. Counting begins at number "
        f"1, and every {step}th person "
        f"who is still there leaves, until all have left. Which number has {which} who leaves?",
        "Simulate the circle.",
        f"circle, place, gone = list(range(1, {people + 1})), 0, []\n"
        f"while circle:\n"
        f"    place = (place + {step - 1}) % len(circle)\n"
        f"    gone.append(circle.pop(place))\n"
        f"result = gone[-{left}]",
    )


def automaton(rng: random.Random) -> ToolProblem:
    rule, cells, steps = (
        rng.choice((18, 22, 26, 30, 45, 54, 60, 73, 90, 105, 106, 110, 126, 150)),
        rng.randint(21, 41),
        rng.randint(12, 30),
    )
    start = "".join(rng.choice("01") for _ in range(cells))
    return ToolProblem(
        f"A row of {cells} cells that closes to a ring starts as {start}. In every step each cell "
        f"becomes bit number 4a + 2b + c "
        f"(counted from 0 at the right) of {rule} in binary, where a, b, c are its left neighbour, "
        f"itself and its right neighbour. How "
        f"many cells are 1 after {steps} steps?",
        "Simulate the automaton.",
        f"row = [int(c) for c in '{start}']\n"
        f"for _ in range({steps}):\n"
        f"    row = [{rule} >> (4*row[i-1] + 2*row[i] + row[(i+1) % {cells}]) & 1 for i in range({cells})]\n"
        f"result = sum(row)",
    )


FAMILIES = {
    "power_digits": power_digits,
    "conditional_sum": conditional_sum,
    "prime_count": prime_count,
    "orbit": orbit,
    "smallest": smallest,
    "calendar_count": calendar_count,
    "coins": coins,
    "walls": walls,
    "recurrence": recurrence,
    "josephus": josephus,
    "automaton": automaton,
}
