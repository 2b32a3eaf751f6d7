"""Equations, systems, inequalities, polynomials, sequences."""

import random
from fractions import Fraction

from environments.mathematics.problem import Problem, latex, nonzero, polynomial, radical, root


def linear(rng: random.Random) -> Problem:
    """``a x + b = c x + d``, on harder levels with brackets."""
    level = rng.randint(1, 3)
    a, c = rng.sample([n for n in range(-12, 13) if n], 2)
    b, d = rng.randint(-30, 30), rng.randint(-30, 30)
    if level == 1:
        a, c = abs(a) + 1, 0
    k = nonzero(rng, 6) if level == 3 else 1
    left = polynomial([a, b])
    left = f"{k if k != -1 else '-'}({left})" if level == 3 and k != 1 else left
    right = polynomial([c, d]) if c or d else "0"
    value = Fraction(d - k * b, k * a - c) if k * a != c else None
    if value is None:
        return linear(rng)
    steps = (
        f"{polynomial([k * a, k * b])} = {right}; ({k * a} - ({c}))x = {d} - ({k * b}); "
        f"{k * a - c}x = {d - k * b}; x = {latex(value)}"
    )
    return Problem(f"Solve for $x$: ${left} = {right}$.", steps, latex(value), level + 2)


def quadratic(rng: random.Random) -> Problem:
    """Roots that are whole, fractions, or with a radical."""
    level = rng.randint(1, 3)
    if level < 3:
        p, q = (1, 1) if level == 1 else (rng.randint(1, 4), rng.randint(1, 3))
        r, s = rng.sample(range(-12, 13), 2)
        first, second = Fraction(r, p), Fraction(s, q)
        if first == second:
            return quadratic(rng)
        coefficients = [p * q, -(p * s + q * r), r * s]
        low, high = sorted((first, second))
        steps = (
            f"{polynomial(coefficients)} = ({polynomial([p, -r])})({polynomial([q, -s])}); "
            f"x = {latex(first)} or x = {latex(second)}"
        )
        answer = rf"\{{{latex(low)}, {latex(high)}\}}"
        return Problem(
            f"Find all real solutions of ${polynomial(coefficients)} = 0$.", steps, answer, 3 + level, "set"
        )
    half, square = rng.randint(-9, 9), rng.randint(2, 80)
    if radical(square)[1] == 1:
        return quadratic(rng)
    coefficients = [1, -2 * half, half * half - square]
    text = root(square)
    shift = str(half) if half else ""
    low, high = f"{shift}-{text}", f"{shift}+{text}" if half else text
    steps = (
        f"(x - ({half}))^2 = {square}; x - ({half}) = \\pm\\sqrt{{{square}}} = \\pm{text}; x = "
        f"{half} \\pm {text}"
    )
    return Problem(
        f"Find all real solutions of ${polynomial(coefficients)} = 0$.",
        steps,
        rf"\{{{low}, {high}\}}",
        6,
        "set",
    )


def system(rng: random.Random) -> Problem:
    """Two linear equations in two unknowns."""
    x = Fraction(rng.randint(-9, 9), rng.choice((1, 1, 2, 3)))
    y = Fraction(rng.randint(-9, 9), rng.choice((1, 1, 2)))
    a, b, c, d = (
        nonzero(rng, 9) * x.denominator if i % 2 == 0 else nonzero(rng, 9) * y.denominator for i in range(4)
    )
    determinant = a * d - b * c
    if determinant == 0:
        return system(rng)
    e, f = int(a * x + b * y), int(c * x + d * y)
    steps = (
        f"determinant: {a}*({d}) - ({b})*({c}) = {determinant}; x = ({e}*({d}) - "
        f"({b})*({f}))/({determinant}) = "
        f"{e * d - b * f}/({determinant}) = {latex(x)}; y = ({a}*({f}) - ({e})*({c}))/({determinant}) = "
        f"{a * f - e * c}/({determinant}) = {latex(y)}"
    )
    equations = f"${_two(a, b)} = {e}$ and ${_two(c, d)} = {f}$"
    return Problem(
        f"Solve the system {equations}. Give the pair $(x, y)$.",
        steps,
        f"({latex(x)}, {latex(y)})",
        6,
        "tuple",
    )


def _two(a: int, b: int) -> str:
    first = {1: "", -1: "-"}.get(a, str(a)) + "x"
    second = ("" if abs(b) == 1 else str(abs(b))) + "y"
    return f"{first} {'-' if b < 0 else '+'} {second}"


def inequality(rng: random.Random) -> Problem:
    """A quadratic inequality; the answer is an interval or two."""
    low, high = sorted(rng.sample(range(-15, 16), 2))
    factor = nonzero(rng, 4)
    strict, below = rng.random() < 0.5, rng.random() < 0.5
    relation = ("<" if strict else r"\le") if below else (">" if strict else r"\ge")
    coefficients = [factor, -factor * (low + high), factor * low * high]
    between = below == (factor > 0)
    if between:
        answer = f"({low}, {high})" if strict else f"[{low}, {high}]"
    else:
        brackets = (")", "(") if strict else ("]", "[")
        answer = rf"(-\infty, {low}{brackets[0]} \cup {brackets[1]}{high}, \infty)"
    steps = (
        f"roots of {polynomial(coefficients)}: {low} and {high}; it opens {'up' if factor > 0 else 'down'}; "
        f"so the solutions lie {'between' if between else 'outside'} the roots: {answer}"
    )
    prompt = (
        f"Solve ${polynomial(coefficients)} {relation} 0$ over the reals. Give the solution in "
        f"interval notation."
    )
    return Problem(prompt, steps, answer, 5, "interval")


def coefficient(rng: random.Random) -> Problem:
    """One coefficient of a product of two polynomials."""
    first = [nonzero(rng, 9), *(rng.randint(-9, 9) for _ in range(rng.randint(1, 3)))]
    second = [nonzero(rng, 9), *(rng.randint(-9, 9) for _ in range(rng.randint(1, 3)))]
    degree = len(first) + len(second) - 2
    power = rng.randrange(1, degree)
    parts = [
        (a, b)
        for i, a in enumerate(reversed(first))
        for j, b in enumerate(reversed(second))
        if i + j == power
    ]
    value = sum(a * b for a, b in parts)
    steps = " + ".join(f"({a})*({b})" for a, b in parts) + f" = {value}"
    letter = "x" if power == 1 else f"x^{power}"
    prompt = (
        f"What is the coefficient of ${letter}$ in the product $({polynomial(first)})({polynomial(second)})$?"
    )
    return Problem(prompt, steps, str(value), len(parts) + 1)


def progression(rng: random.Random) -> Problem:
    """A sum of an arithmetic sequence of which two terms are known."""
    first, difference, count = rng.randint(-40, 60), nonzero(rng, 15), rng.randint(12, 60)
    i, j = sorted(rng.sample(range(2, 12), 2))
    terms = [first + (n - 1) * difference for n in (i, j, count)]
    total = count * (first + terms[2]) // 2
    steps = (
        f"d = ({terms[1]} - ({terms[0]}))/({j} - {i}) = {difference}; a_1 = {terms[0]} - "
        f"{i - 1}*({difference}) = "
        f"{first}; a_{count} = {first} + {count - 1}*({difference}) = {terms[2]}; "
        f"S = {count}*({first} + ({terms[2]}))/2 = {total}"
    )
    prompt = (
        f"In an arithmetic sequence the term number {i} is {terms[0]} and the term number {j} is {terms[1]}. "
        f"What is the sum of its first {count} terms?"
    )
    return Problem(prompt, steps, str(total), 4)


def geometric(rng: random.Random) -> Problem:
    """An infinite geometric series, or its first terms."""
    first = nonzero(rng, 40)
    low = rng.randint(2, 9)
    ratio = Fraction(nonzero(rng, low - 1), low)
    if rng.random() < 0.5:
        value = first / (1 - ratio)
        steps = (
            f"S = a/(1 - r) = {first}/(1 - ({latex(ratio)})) = {first}/({latex(1 - ratio)}) = {latex(value)}"
        )
        what = "the sum of all its terms"
    else:
        count = rng.randint(3, 5)
        terms = [first * ratio**n for n in range(count)]
        value = sum(terms)
        steps = " + ".join(f"({latex(term)})" for term in terms) + f" = {latex(value)}"
        what = f"the sum of its first {count} terms"
    prompt = f"A geometric sequence starts with {first} and has the ratio ${latex(ratio)}$. What is {what}?"
    return Problem(prompt, steps, latex(value), 4)


def vieta(rng: random.Random) -> Problem:
    """A symmetric value of the roots, without finding them."""
    a, b, c = nonzero(rng, 6), rng.randint(-15, 15), nonzero(rng, 15)
    total, product = Fraction(-b, a), Fraction(c, a)
    what, value, formula = rng.choice(
        (
            ("r^2 + s^2", total**2 - 2 * product, "(r+s)^2 - 2rs"),
            (r"\frac{1}{r} + \frac{1}{s}", total / product, "(r+s)/(rs)"),
            ("r^3 + s^3", total**3 - 3 * product * total, "(r+s)^3 - 3rs(r+s)"),
            ("(r-s)^2", total**2 - 4 * product, "(r+s)^2 - 4rs"),
        )
    )
    steps = f"r+s = {latex(total)}; rs = {latex(product)}; {what} = {formula} = {latex(value)}"
    prompt = f"Let $r$ and $s$ be the complex roots of ${polynomial([a, b, c])} = 0$. Find ${what}$."
    return Problem(prompt, steps, latex(value), 4)


def exponential(rng: random.Random) -> Problem:
    """Powers of one base on both sides."""
    base = rng.choice((2, 3, 5, 7))
    i, j = rng.sample(range(1, 5), 2)
    a, b, c, d = nonzero(rng, 5), rng.randint(-9, 9), nonzero(rng, 5), rng.randint(-9, 9)
    if i * a == j * c:
        return exponential(rng)
    value = Fraction(j * d - i * b, i * a - j * c)
    steps = (
        f"{base}^{{{i}({polynomial([a, b])})}} = {base}^{{{j}({polynomial([c, d])})}}; "
        f"{polynomial([i * a, i * b])} = {polynomial([j * c, j * d])}; "
        f"{i * a - j * c}x = {j * d - i * b}; x = {latex(value)}"
    )
    prompt = f"Solve for real $x$: ${base**i}^{{{polynomial([a, b])}}} = {base**j}^{{{polynomial([c, d])}}}$."
    return Problem(prompt, steps, latex(value), 4)


FAMILIES = {
    "linear": linear,
    "quadratic": quadratic,
    "system": system,
    "inequality": inequality,
    "coefficient": coefficient,
    "progression": progression,
    "geometric": geometric,
    "vieta": vieta,
    "exponential": exponential,
}
