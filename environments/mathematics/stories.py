"""Word problems of two to five steps."""

import random
from fractions import Fraction

from environments.mathematics.problem import Problem, latex

NAMES = ("Ana", "Bela", "Chidi", "Dora", "Emil", "Farah", "Goran", "Hiro", "Ines", "Jonas", "Kofi", "Lena")
GOODS = (("pens", "notebooks"), ("apples", "melons"), ("tickets", "programmes"), ("bolts", "hinges"))


def shopping(rng: random.Random) -> Problem:
    """A bill with a discount, paid with a note."""
    name, (first, second) = rng.choice(NAMES), rng.choice(GOODS)
    a, b, p, q = rng.randint(2, 12), rng.randint(2, 12), rng.randint(1, 9), rng.randint(4, 25)
    percent = rng.choice((5, 10, 15, 20, 25, 30))
    total = a * p + b * q
    price = Fraction(total * (100 - percent), 100)
    note = int(price) + rng.randint(5, 40)
    value = note - price
    steps = (
        f"{a}*{p} + {b}*{q} = {total}; {percent}% less: {total}*{100 - percent}/100 = {latex(price)}; "
        f"{note} - {latex(price)} = {latex(value)}"
    )
    prompt = (
        f"{name} buys {a} {first} at {p} euros each and {b} {second} at {q} euros each, gets "
        f"{percent}% off the whole "
        f"bill and pays with {note} euros. How many euros does {name} get back?"
    )
    return Problem(prompt, steps, latex(value), 4, unit="euros")


def work(rng: random.Random) -> Problem:
    """Two together, one of them for a part of the time."""
    first, second = rng.sample(range(3, 25), 2)
    a, b = rng.sample(NAMES, 2)
    alone = rng.randint(1, first - 1)
    left = 1 - Fraction(alone, first)
    value = left / (Fraction(1, first) + Fraction(1, second))
    steps = (
        f"after {alone} h there is {latex(left)} left; together 1/{first} + 1/{second} = "
        f"{latex(Fraction(1, first) + Fraction(1, second))} an hour; {latex(value)} hours"
    )
    prompt = (
        f"{a} alone paints a hall in {first} hours, {b} alone in {second} hours. {a} works alone for "
        f"{alone} hours, then "
        f"{b} joins until the hall is done. How many hours do they paint together? Give the exact number."
    )
    return Problem(prompt, steps, latex(value), 5, unit="hours")


def travel(rng: random.Random) -> Problem:
    """Two that go towards each other, one starting later."""
    a, b, head = rng.randint(40, 110), rng.randint(40, 110), rng.randint(1, 3)
    distance = a * head + rng.randint(30, 600)
    value = Fraction(distance - a * head, a + b)
    steps = (
        f"the first goes {a}*{head} = {a * head} km alone; {distance} - {a * head} = "
        f"{distance - a * head} km are left; "
        f"{distance - a * head}/({a} + {b}) = {latex(value)}"
    )
    prompt = (
        f"Two towns are {distance} km apart. A train leaves the first at {a} km/h; {head} h later "
        f"another leaves the second "
        f"towards it at {b} km/h. How many hours after the second train's start do they meet? Give the "
        f"exact number."
    )
    return Problem(prompt, steps, latex(value), 4, unit="hours")


def mixture(rng: random.Random) -> Problem:
    """How much to add to reach a strength."""
    weak, wanted, strong = sorted(rng.sample(range(5, 96), 3))
    amount = rng.randint(2, 60)
    value = Fraction(amount * (wanted - weak), strong - wanted)
    steps = (
        f"{amount}*({wanted} - {weak}) = {amount * (wanted - weak)} is missing; each litre adds "
        f"{strong} - {wanted} = "
        f"{strong - wanted}; {latex(value)}"
    )
    liquid = rng.choice(("salt", "sugar", "acid", "alcohol"))
    prompt = (
        f"How many litres of a {strong}% {liquid} solution must be added to {amount} litres of a "
        f"{weak}% {liquid} solution "
        f"to get a {wanted}% solution? Give the exact number."
    )
    return Problem(prompt, steps, latex(value), 4, unit="litres")


def ages(rng: random.Random) -> Problem:
    """Ages now and in some years."""
    a, b = rng.sample(NAMES, 2)
    young, factor, later = rng.randint(3, 20), rng.randint(2, 5), rng.randint(2, 15)
    old = factor * young
    total = young + old + 2 * later
    steps = (
        f"in {later} years both grow: {total} - 2*{later} = {young + old} now; {a} has 1 of "
        f"{factor + 1} parts: "
        f"{young + old}/{factor + 1} = {young}; {b}: {old}"
    )
    prompt = (
        f"{b} is {factor} times as old as {a}. In {later} years their ages will add up to "
        f"{total}. How old is {b} now?"
    )
    return Problem(prompt, steps, str(old), 4, unit="years")


def interest(rng: random.Random) -> Problem:
    """Compound interest over a few years with a deposit."""
    amount, rate, years, extra = (
        rng.randint(2, 40) * 100,
        rng.choice((2, 4, 5, 10)),
        rng.randint(2, 3),
        rng.randint(1, 9) * 50,
    )
    value, lines = Fraction(amount), []
    for year in range(years):
        value = value * (100 + rate) / 100 + (extra if year < years - 1 else 0)
        lines.append(f"after year {year + 1}: {latex(value)}")
    name = rng.choice(NAMES)
    prompt = (
        f"{name} puts {amount} euros into an account with {rate}% interest a year and adds {extra} "
        f"euros at the end of each "
        f"year except the last. How many euros are there after {years} years? Give the exact number, "
        f"without rounding."
    )
    return Problem(prompt, "; ".join(lines), latex(value), years * 2, unit="euros")


FAMILIES = {
    "shopping": shopping,
    "work": work,
    "travel": travel,
    "mixture": mixture,
    "ages": ages,
    "interest": interest,
}
