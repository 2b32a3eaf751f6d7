"""Combinatorics."""

import math
import random
from collections import Counter

from environments.mathematics.problem import Problem

LETTERS = "ABDEILNORST"
NAMES = ("Ana", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gul", "Hana", "Ivo", "Jin")


def arrangements(rng: random.Random) -> Problem:
    """Orders of letters of which some repeat."""
    word = "".join(rng.choices(LETTERS[: rng.randint(4, 8)], k=rng.randint(6, 9)))
    counts = Counter(word)
    below = [math.factorial(count) for count in counts.values() if count > 1]
    value = math.factorial(len(word)) // math.prod(below)
    steps = (
        f"{len(word)}! = {math.factorial(len(word))}; divided by "
        + "*".join(map(str, below or [1]))
        + f" = {value}"
    )
    return Problem(
        f"In how many different ways can the letters {word} be arranged in a row?", steps, str(value), 3
    )


def committee(rng: random.Random) -> Problem:
    """Choices from two groups with a least number from one."""
    first, second, size = rng.randint(4, 10), rng.randint(4, 10), rng.randint(3, 6)
    least = rng.randint(1, min(3, size, first))
    cases = [(k, size - k) for k in range(least, min(first, size) + 1) if size - k <= second]
    values = [math.comb(first, k) * math.comb(second, rest) for k, rest in cases]
    steps = "; ".join(
        f"C({first},{k})*C({second},{rest}) = {math.comb(first, k)}*{math.comb(second, rest)} = {value}"
        for (k, rest), value in zip(cases, values, strict=True)
    )
    some, others = rng.sample(
        ("teachers", "parents", "pupils", "nurses", "engineers", "farmers", "neighbours"), 2
    )
    prompt = (
        f"A committee of {size} is chosen from {first} {some} and {second} {others}, with at least {least} "
        f"of the {some}. How many committees are possible?"
    )
    return Problem(prompt, f"{steps}; total {sum(values)}", str(sum(values)), len(cases) + 1)


def lattice_paths(rng: random.Random) -> Problem:
    """Shortest ways on a grid that avoid a crossing."""
    m, n = rng.randint(4, 11), rng.randint(4, 11)
    a, b = rng.randint(1, m - 1), rng.randint(1, n - 1)
    everything, to, after = math.comb(m + n, m), math.comb(a + b, a), math.comb(m - a + n - b, m - a)
    value = everything - to * after
    steps = (
        f"all: C({m + n},{m}) = {everything}; through ({a},{b}): C({a + b},{a})*C({m - a + n - b},{m - a}) = "
        f"{to}*{after} = {to * after}; {everything} - {to * after} = {value}"
    )
    prompt = (
        f"A path goes from $(0,0)$ to $({m},{n})$ in unit steps to the right or up and must not pass through "
        f"$({a},{b})$. How many such paths are there?"
    )
    return Problem(prompt, steps, str(value), 4)


def distributions(rng: random.Random) -> Problem:
    """Stars and bars with a lower bound for each part."""
    kinds, least = rng.randint(3, 6), rng.randint(0, 2)
    total = kinds * least + rng.randint(4, 14)
    left = total - kinds * least
    value = math.comb(left + kinds - 1, kinds - 1)
    steps = f"{total} - {kinds}*{least} = {left} are free; C({left + kinds - 1},{kinds - 1}) = {value}"
    goods = rng.choice(("apples", "coins", "books", "stamps", "tickets", "marbles"))
    bound = f"and each gets at least {least}" if least else "and some may get none"
    takers = rng.choice(("children", "shops", "schools", "players", "cousins", "rooms"))
    prompt = (
        f"In how many ways can {total} equal {goods} be given to {kinds} {takers}, if all are "
        f"given away {bound}?"
    )
    return Problem(prompt, steps, str(value), 3)


def subsets(rng: random.Random) -> Problem:
    """Numbers up to a bound divisible by one of two, by inclusion and exclusion."""
    bound, (a, b) = rng.randint(100, 3000), rng.sample(range(2, 16), 2)
    both = math.lcm(a, b)
    value = bound // a + bound // b - bound // both
    steps = (
        f"{bound}//{a} = {bound // a}; {bound}//{b} = {bound // b}; both: {bound}//{both} = {bound // both}; "
        f"{bound // a} + {bound // b} - {bound // both} = {value}"
    )
    prompt = f"How many integers from 1 to {bound} are divisible by {a} or by {b} (or by both)?"
    return Problem(prompt, steps, str(value), 4)


def seating(rng: random.Random) -> Problem:
    """Rows in which two people sit together or apart."""
    people = rng.sample(NAMES, rng.randint(5, 8))
    count, (a, b) = len(people), people[:2]
    together = 2 * math.factorial(count - 1)
    apart = rng.random() < 0.5
    value = math.factorial(count) - together if apart else together
    steps = f"together: 2*{count - 1}! = {together}" + (
        f"; {count}! - {together} = {math.factorial(count)} - {together} = {value}" if apart else ""
    )
    sorted_names = ", ".join(sorted(people))
    rule = f"{a} and {b} are not next to each other" if apart else f"{a} and {b} are next to each other"
    prompt = f"In how many ways can {sorted_names} sit in a row of {count} chairs so that {rule}?"
    return Problem(prompt, steps, str(value), 3)


def derangements(rng: random.Random) -> Problem:
    """Permutations with a given number of fixed points."""
    count = rng.randint(4, 9)
    fixed = rng.randint(0, count - 2)
    free = count - fixed
    numbers = [1, 0]
    for n in range(2, free + 1):
        numbers.append((n - 1) * (numbers[-1] + numbers[-2]))
    value = math.comb(count, fixed) * numbers[free]
    steps = (
        f"derangements D(0), D(1), ...: {', '.join(map(str, numbers))}; C({count},{fixed})*D({free}) = "
        f"{math.comb(count, fixed)}*{numbers[free]} = {value}"
    )
    things, places = rng.choice(
        (
            ("letters", "envelopes"),
            ("hats", "owners"),
            ("keys", "locks"),
            ("cards", "boxes"),
            ("coats", "hooks"),
            ("parcels", "doors"),
            ("pupils", "desks"),
            ("caps", "bottles"),
        )
    )
    prompt = (
        f"{rng.choice(NAMES)} has {count} {things}, and each belongs to one of {count} {places}. In "
        f"how many ways can the "
        f"{things} be put to the {places}, one to each, so that exactly {fixed} of them are in the "
        f"right place?"
    )
    return Problem(prompt, steps, str(value), free + 1)


FAMILIES = {
    "arrangements": arrangements,
    "committee": committee,
    "lattice_paths": lattice_paths,
    "distributions": distributions,
    "multiples": subsets,
    "seating": seating,
    "derangements": derangements,
}
