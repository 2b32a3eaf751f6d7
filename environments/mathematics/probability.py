"""Probability, with answers as exact fractions."""

import math
import random
from fractions import Fraction

from environments.mathematics.problem import Problem, latex


def urn(rng: random.Random) -> Problem:
    """Draws without replacement."""
    red, blue, drawn = rng.randint(3, 12), rng.randint(3, 12), rng.randint(2, 4)
    wanted = rng.randint(max(0, drawn - blue), min(red, drawn))
    ways = math.comb(red, wanted) * math.comb(blue, drawn - wanted)
    value = Fraction(ways, math.comb(red + blue, drawn))
    steps = (
        f"C({red},{wanted})*C({blue},{drawn - wanted})/C({red + blue},{drawn}) = "
        f"{ways}/{math.comb(red + blue, drawn)} = {latex(value)}"
    )
    one, other = rng.sample(("red", "blue", "green", "white", "black", "yellow"), 2)
    prompt = (
        f"An urn holds {red} {one} and {blue} {other} balls. {drawn} balls are drawn without "
        f"replacement. What is "
        f"the probability that exactly {wanted} of them are {one}?"
    )
    return Problem(prompt, steps, latex(value), 4)


def dice(rng: random.Random) -> Problem:
    """The sum of two dice of any number of sides."""
    a, b = rng.randint(4, 20), rng.randint(4, 20)
    least = rng.randint(3, a + b)
    counts = [max(0, min(b, b - (least - first) + 1)) for first in range(1, a + 1)]
    value = Fraction(sum(counts), a * b)
    steps = (
        f"for 1 to {a} on the first: {' + '.join(map(str, counts))} = {sum(counts)} of {a * b}; "
        f"{latex(value)}"
    )
    prompt = (
        f"Two fair dice are rolled, one with {a} sides (1 to {a}) and one with {b} sides (1 to {b}). What is "
        f"the probability that the sum is at least {least}?"
    )
    return Problem(prompt, steps, latex(value), 4)


def binomial(rng: random.Random) -> Problem:
    """A number of successes in independent trials."""
    low = rng.randint(2, 6)
    chance = Fraction(rng.randint(1, low - 1), low)
    trials = rng.randint(3, 5)
    wanted = rng.randint(0, trials)
    exactly = [math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(trials + 1)]
    least = rng.random() < 0.5
    value = sum(exactly[wanted:]) if least else exactly[wanted]
    parts = range(wanted, trials + 1) if least else [wanted]
    steps = "; ".join(f"P({k}) = {latex(exactly[k])}" for k in parts) + f"; {latex(value)}"
    what = "at least" if least else "exactly"
    player = rng.choice(
        ("A player", "An archer", "A machine", "A student", "A goalkeeper", "A robot", "A diver", "A juggler")
    )
    prompt = (
        f"{player} succeeds in each try with probability ${latex(chance)}$, independently. What is the "
        f"probability "
        f"of {what} {wanted} successes in {trials} tries?"
    )
    return Problem(prompt, steps, latex(value), 3 + len(parts))


def expectation(rng: random.Random) -> Problem:
    """The expected value of a game with three outcomes."""
    weights = [rng.randint(1, 9) for _ in range(3)]
    gains = [rng.randint(-20, 40) for _ in range(3)]
    total = sum(weights)
    value = Fraction(sum(w * g for w, g in zip(weights, gains, strict=True)), total)
    steps = " + ".join(f"{w}*({g})" for w, g in zip(weights, gains, strict=True)) + (
        f" = {value * total}; divided by {total} = {latex(value)}"
    )
    wheel = ", ".join(f"{w} fields pay {g}" for w, g in zip(weights, gains, strict=True))
    prompt = (
        f"A wheel has {total} equal fields: {wheel} points (a negative number is a loss). What is "
        f"the expected number of points of one spin?"
    )
    return Problem(prompt, steps, latex(value), 4)


def both_or_neither(rng: random.Random) -> Problem:
    """Unions and conditions from a table of counts."""
    only_a, only_b, both, none = (rng.randint(1, 40) for _ in range(4))
    total = only_a + only_b + both + none
    a, b = rng.sample(("chess", "football", "music", "drawing", "swimming", "chemistry"), 2)
    kind = rng.randrange(3)
    value, question = (
        (Fraction(both, only_b + both), f"is signed up for {a}, given that the member is signed up for {b}"),
        (Fraction(none, total), f"is signed up for neither {a} nor {b}"),
        (Fraction(only_a + only_b, total), f"is signed up for exactly one of {a} and {b}"),
    )[kind]  # fmt: skip
    steps = (
        f"only {a}: {only_a + both} - {both} = {only_a}; only {b}: {only_b + both} - {both} = "
        f"{only_b}; neither: "
        f"{total} - {only_a} - {only_b} - {both} = {none}; {latex(value)}"
    )
    prompt = (
        f"Of {total} members of a club {only_a + both} are signed up for {a}, {only_b + both} for {b} "
        f"and {both} for "
        f"both. A member is chosen at random. What is the probability that this member {question}?"
    )
    return Problem(prompt, steps, latex(value), 5)


def bayes(rng: random.Random) -> Problem:
    """The probability of a cause."""
    shares = [rng.randint(1, 9) for _ in range(2)]
    faults = [rng.randint(1, 12) for _ in range(2)]
    total = sum(shares)
    weights = [s * f for s, f in zip(shares, faults, strict=True)]
    value = Fraction(weights[0], sum(weights))
    steps = (
        f"{shares[0]}/{total}*{faults[0]}/100 against {shares[1]}/{total}*{faults[1]}/100, that is "
        f"{weights[0]} to {weights[1]}; {weights[0]}/{sum(weights)} = {latex(value)}"
    )
    prompt = (
        f"Of every {total} parts, {shares[0]} come from machine A and {shares[1]} from machine B. Of "
        f"A's parts "
        f"{faults[0]}\\% are faulty, of B's {faults[1]}\\%. A part taken at random is faulty. What is "
        f"the probability that "
        "it came from machine A?"
    )
    return Problem(prompt, steps, latex(value), 5)


FAMILIES = {
    "urn": urn, "dice": dice, "binomial": binomial, "expectation": expectation, "club": both_or_neither,
    "bayes": bayes,
}  # fmt: skip
