"""The answers of mathematics equal those found in other ways: brute force, enumeration, SymPy."""

import asyncio
import itertools
import math
import random
import re
from fractions import Fraction

import pytest

from environments.mathematics.checker import CheckerError
from environments.mathematics.environment import Mathematics, is_equal
from environments.mathematics.reading import read_number, read_numbers

MATHS = Mathematics()


def tasks(family, count):
    first = random.Random(family).randrange(10**6)
    heldout = family in MATHS.evaluation_only
    return [MATHS.make_task(family, first + seed, heldout) for seed in range(count)]


def _numbers(text):
    return [int(n) for n in re.findall(r"-?\d+", text.removesuffix(r" Put the final answer in \boxed{}."))]


def solve(family, prompt):
    """Brute force, unlike the generators."""
    n = _numbers(prompt)
    if family == "dice":
        a, b, least = n[0], n[3], n[6]
        return Fraction(sum(x + y >= least for x in range(1, a + 1) for y in range(1, b + 1)), a * b)
    if family == "divisors":
        found = [d for d in range(1, n[0] + 1) if n[0] % d == 0] if n[0] < 200_000 else None
        return found and (len(found) if "How many" in prompt else sum(found))
    if family == "multiples":
        return sum(k % n[2] == 0 or k % n[3] == 0 for k in range(1, n[1] + 1))
    if family == "power_remainder":
        return pow(n[0], n[1], n[2])
    if family == "inverse":
        return pow(n[2], -1, n[1])
    if family == "trailing_zeros":
        value, k = math.factorial(n[1]), 0
        while value % n[0] == 0:
            value, k = value // n[0], k + 1
        return k
    if family == "remainders":
        pairs = (
            list(itertools.batched(n, 2))
            if hasattr(itertools, "batched")
            else list(zip(n[::2], n[1::2], strict=True))
        )
        return next(k for k in itertools.count(1) if all(k % m == r for r, m in pairs))
    if family == "arrangements":
        word = re.search(r"letters (\w+)", prompt)[1]
        return len(set(itertools.permutations(word))) if len(word) < 8 else None
    if family == "derangements":
        count, fixed = n[0], n[-1]
        return (
            sum(sum(i == k for i, k in enumerate(p)) == fixed for p in itertools.permutations(range(count)))
            if count < 8
            else None
        )
    if family == "lattice_paths":
        m, h, a, b = n[2:]
        ways = {}
        for x, y in itertools.product(range(m + 1), range(h + 1)):
            ways[x, y] = (
                0
                if (x, y) == (a, b)
                else 1
                if x == y == 0
                else ways.get((x - 1, y), 0) + ways.get((x, y - 1), 0)
            )
        return ways[m, h]
    if family == "urn":
        balls = [1] * n[0] + [0] * n[1]
        draws = [sum(draw) for draw in itertools.combinations(balls, n[2])]
        return Fraction(draws.count(n[3]), len(draws))
    if family == "progression":
        i, first, j, second, count = n
        step = Fraction(second - first, j - i)
        return sum(first + (k - i) * step for k in range(1, count + 1))
    return None


def solve_more(family, prompt):
    """Other ways again: enumeration, or the story told forwards with the answer unknown."""
    n = _numbers(prompt)
    if family == "common_divisor":
        return math.gcd(*n[:2]) if "greatest" in prompt else math.lcm(*n[:2])
    if family == "bases":
        if prompt.startswith("Write"):
            number, base, digits = n[0], n[1], ""
            while number:
                number, digit = divmod(number, base)
                digits = str(digit) + digits
            return int(digits)
        return int(str(n[0]), n[1])
    if family == "committee":
        size, first, second, least = n
        people = [1] * first + [0] * second
        return sum(sum(chosen) >= least for chosen in itertools.combinations(people, size))
    if family == "distributions":
        total, kinds, least = n[0], n[1], n[2] if len(n) > 2 else 0
        counts = {0: 1}
        for _ in range(kinds):
            grown = {}
            for given, ways in counts.items():
                for part in range(least, total - given + 1):
                    grown[given + part] = grown.get(given + part, 0) + ways
            counts = grown
        return counts[total]
    if family == "seating":
        names = re.search(r"can (.*) sit", prompt)[1].split(", ")
        a, b = re.search(r"so that (\w+) and (\w+) are", prompt).groups()
        near = sum(abs(p.index(a) - p.index(b)) == 1 for p in itertools.permutations(names))
        return math.factorial(len(names)) - near if "are not next" in prompt else near
    if family == "binomial":
        top, low, wanted, trials = n
        outcomes = itertools.product((1, 0), repeat=trials)
        least = "at least" in prompt
        return sum(
            math.prod(Fraction(top, low) if hit else 1 - Fraction(top, low) for hit in outcome)
            for outcome in outcomes
            if (sum(outcome) >= wanted if least else sum(outcome) == wanted)
        )
    if family == "expectation":
        fields = [gain for count, gain in zip(n[1::2], n[2::2], strict=False) for _ in range(count)]
        return Fraction(sum(fields[: n[0]]), n[0])
    if family == "bayes":
        _, a, b, fa, fb = n
        return Fraction(a * fa, a * fa + b * fb)
    if family == "shopping":
        a, p, b, q, percent, note = n
        return note - Fraction(a * p + b * q) * (1 - Fraction(percent, 100))
    if family == "mixture":
        strong, amount, weak, wanted = n
        # x*strong + amount*weak = (x + amount)*wanted at two trial values, then linear interpolation
        error = [x * strong + amount * weak - (x + amount) * wanted for x in (0, 1)]
        return Fraction(-error[0], error[1] - error[0])
    if family == "work":
        first, second, alone = n
        x = Fraction(1)
        gap = [Fraction(alone, first) + t * (Fraction(1, first) + Fraction(1, second)) - 1 for t in (0, x)]
        return -gap[0] / (gap[1] - gap[0])
    if family == "travel":
        distance, a, head, b = n
        gap = [a * (head + t) + b * t - distance for t in (0, 1)]
        return Fraction(-gap[0], gap[1] - gap[0])
    if family == "ages":
        factor, later, total = n
        return next(factor * y for y in range(1, 200) if y + factor * y + 2 * later == total)
    if family == "interest":
        amount, rate, extra, years = n
        for year in range(years):
            amount += Fraction(amount) * rate / 100
            amount += extra if year + 1 < years else 0
        return amount
    if family == "triangle" or family == "polygon":
        ring = list(zip(n[::2], n[1::2], strict=True))
        parts = [
            Fraction((b[0] - ring[0][0]) * (c[1] - ring[0][1]) - (c[0] - ring[0][0]) * (b[1] - ring[0][1]), 2)
            for b, c in itertools.pairwise(ring[1:])
        ]
        return abs(sum(parts))
    if family == "similar":
        side, other, area = n[:3]
        return Fraction(area * other * other, side * side)
    return None


MORE = (
    "common_divisor",
    "bases",
    "committee",
    "distributions",
    "seating",
    "binomial",
    "expectation",
    "bayes",
    "shopping",
    "mixture",
    "work",
    "travel",
    "ages",
    "interest",
    "triangle",
    "polygon",
    "similar",
)


@pytest.mark.parametrize("family", MORE)
def test_answers_equal_another_computation(family):
    for task in tasks(family, 12):
        expected = solve_more(family, task.messages[0]["content"])
        assert read_number(task.truth["answer"]) == expected, task


def test_solutions_of_systems_and_squares_solve_them():
    for task in tasks("system", 40):
        x, y = read_numbers(task.truth["answer"], ordered=True)
        for equation in task.messages[0]["content"].split("$")[1:4:2]:
            a, sign, b, total = re.fullmatch(r"(-?\d*)x ([+-]) (\d*)y = (-?\d+)", equation).groups()
            a = int(a + "1") if a in ("", "-") else int(a)
            assert a * x + int(sign + (b or "1")) * y == int(total)
    for task in tasks("quadratic", 40):
        if "sqrt" not in task.truth["answer"]:
            formula = task.messages[0]["content"].split("$")[1].split(" = ")[0]
            for x in read_numbers(task.truth["answer"], ordered=False):
                term = re.sub(r"(?<=\d)x", "*x", formula.replace("^", "**"))
                assert eval(term, {"x": x}) == 0, task


BRUTE = (
    "dice",
    "divisors",
    "multiples",
    "power_remainder",
    "inverse",
    "trailing_zeros",
    "remainders",
    "arrangements",
    "derangements",
    "lattice_paths",
    "urn",
    "progression",
)


@pytest.mark.parametrize("family", BRUTE)
def test_answers_equal_brute_force(family):
    checked = 0
    for task in tasks(family, 12):
        expected = solve(family, task.messages[0]["content"])
        if expected is not None:
            checked += 1
            assert read_number(task.truth["answer"]) == expected, task
    assert checked > 3


def test_answers_of_calculus_and_algebra_equal_sympy():
    sympy = pytest.importorskip("sympy")
    x = sympy.Symbol("x")

    def term(text):
        text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)
        text = re.sub(r"e\^\{([^{}]*)\}", r"exp(\1)", text).replace(r"\ln", "log")
        text = text.replace("{", "(").replace("}", ")").replace("\\", "").replace("^", "**")
        text = re.sub(r"(\d|\))(?=[a-z(])", r"\1*", re.sub(r"(\d)x", r"\1*x", text))
        return sympy.sympify(text)

    for family in ("derivative", "integral", "limit", "slope", "linear", "vieta"):
        for task in tasks(family, 6):
            prompt = task.messages[0]["content"].removesuffix(r" Put the final answer in \boxed{}.")
            formula = prompt.split("$")[3 if family in ("derivative", "linear") else 1]
            if family == "derivative":
                assert sympy.simplify(sympy.diff(term(formula), x) - term(task.truth["answer"])) == 0
                continue
            if family == "integral":
                low, high, inside = re.match(
                    r"\\int_\{(-?\d+)\}\^\{(-?\d+)\} \((.*)\)\\,dx", formula
                ).groups()
                value = sympy.integrate(term(inside), (x, int(low), int(high)))
            elif family == "limit":
                point, inside = re.match(r"\\lim_\{x \\to (-?\d+)\} (.*)", formula).groups()
                value = sympy.limit(term(inside), x, int(point))
            elif family == "slope":
                value = sympy.diff(term(formula.split(" = ")[1]), x).subs(x, _numbers(prompt)[-1])
            elif family == "linear":
                left, right = formula.split(" = ")
                (value,) = sympy.solve(term(left.replace("-(", "-1*(")) - term(right), x)
            else:
                r, s = sympy.roots(term(prompt.split("$")[5].split(" = ")[0]), x, multiple=True)
                value = sympy.simplify(term(prompt.split("$")[7].replace("rs", "r*s")).subs({"r": r, "s": s}))
            assert sympy.nsimplify(value) == sympy.Rational(str(read_number(task.truth["answer"]))), (
                task,
                value,
            )


@pytest.mark.parametrize(("answer", "kind"), [("1" * 70, "number"), ("1, two", "set"), ("(1, two)", "tuple")])
def test_a_right_answer_that_cannot_be_read_equals_nothing(answer, kind):
    with pytest.raises(CheckerError, match="the right answer cannot be read: .?1"):
        asyncio.run(is_equal("no number", answer, kind))
