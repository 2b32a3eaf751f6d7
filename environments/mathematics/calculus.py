"""Derivatives, integrals, tangents, limits, extrema."""

import random
from fractions import Fraction

from environments.mathematics.problem import Problem, latex, nonzero, polynomial


def _derive(coefficients: list[int]) -> list[int]:
    degree = len(coefficients) - 1
    return [c * (degree - i) for i, c in enumerate(coefficients[:-1])]


def _value(coefficients: list, x) -> Fraction:
    total = Fraction(0)
    for c in coefficients:
        total = total * x + c
    return total


def derivative(rng: random.Random) -> Problem:
    """The derivative of a product, as a term in x."""
    inner = [nonzero(rng, 6), rng.randint(-9, 9)]
    factor = [nonzero(rng, 6), rng.randint(-9, 9), rng.randint(-9, 9)][: rng.randint(2, 3)]
    slope, first = inner[0], polynomial(factor)
    by = polynomial(_derive(factor))
    name, outer, changed = rng.choice(
        (
            ("e", "e^{%s}", "e^{%s}"),
            ("sin", r"\sin(%s)", r"\cos(%s)"),
            ("cos", r"\cos(%s)", r"-\sin(%s)"),
            ("ln", r"\ln(%s)", ""),
        )
    )
    u = polynomial(inner)
    value = outer % u
    steps_of_outer = rf"\frac{{{slope}}}{{{u}}}" if name == "ln" else f"{slope}({changed % u})"
    answer = f"({by}){value}+({first})({steps_of_outer})"
    steps = f"derivative of {first}: {by}; derivative of {value}: {steps_of_outer}; product rule: {answer}"
    prompt = f"Find the derivative with respect to $x$ of $({first}){value}$."
    return Problem(prompt, steps, answer, 5, "expression")


def slope(rng: random.Random) -> Problem:
    """The derivative of a quotient at a point."""
    top, low = (
        [nonzero(rng, 6), rng.randint(-9, 9), rng.randint(-9, 9)],
        [nonzero(rng, 5), rng.randint(-9, 9)],
    )
    x = rng.randint(-5, 5)
    f, g, df, dg = (int(_value(c, x)) for c in (top, low, _derive(top), _derive(low)))
    if g == 0:
        return slope(rng)
    value = Fraction(df * g - f * dg, g * g)
    steps = (
        f"u({x}) = {f}, u' = {df}, v({x}) = {g}, v' = {dg}; (u'v - uv')/v^2 = ({df}*({g}) - "
        f"({f})*({dg}))/{g * g} "
        f"= {latex(value)}"
    )
    prompt = rf"Let $f(x) = \frac{{{polynomial(top)}}}{{{polynomial(low)}}}$. Find $f'({x})$."
    return Problem(prompt, steps, latex(value), 6)


def integral(rng: random.Random) -> Problem:
    """The definite integral of a polynomial."""
    coefficients = [nonzero(rng, 9), *(rng.randint(-9, 9) for _ in range(rng.randint(1, 3)))]
    low, high = sorted(rng.sample(range(-4, 6), 2))
    degree = len(coefficients)
    primitive = [*(Fraction(c, degree - i) for i, c in enumerate(coefficients)), Fraction(0)]
    top, bottom = _value(primitive, high), _value(primitive, low)
    steps = (
        f"primitive F with coefficients {', '.join(latex(c) for c in primitive)}; F({high}) = {latex(top)}; "
        f"F({low}) = {latex(bottom)}; {latex(top - bottom)}"
    )
    prompt = rf"Evaluate $\int_{{{low}}}^{{{high}}} ({polynomial(coefficients)})\,dx$."
    return Problem(prompt, steps, latex(top - bottom), 4 + len(coefficients))


def logarithm_integral(rng: random.Random) -> Problem:
    """An integral that is a difference of logarithms or of powers of e."""
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    low, high = sorted(rng.sample(range(0, 8), 2))
    if rng.random() < 0.5:
        ends = [Fraction(a * x + b) for x in (low, high)]
        ratio = ends[1] / ends[0]
        factor = Fraction(nonzero(rng, 9), a)
        over = factor * a
        answer = rf"{latex(factor)}\ln({latex(ratio)})" if factor != 1 else rf"\ln({latex(ratio)})"
        steps = (
            rf"primitive {latex(factor)}\ln({polynomial([a, b])}); values of the inside {ends[1]} "
            rf"and {ends[0]}; {answer}"
        )
        prompt = rf"Evaluate $\int_{{{low}}}^{{{high}}} \frac{{{over}}}{{{polynomial([a, b])}}}\,dx$ exactly."
    else:
        factor = Fraction(nonzero(rng, 9), a)
        over = factor * a
        power = "x" if a == 1 else f"{a}x"
        answer = rf"{latex(factor)}(e^{{{a * high}}} - e^{{{a * low}}})"
        steps = f"primitive {latex(factor)}e^{{{power}}}; {answer}"
        shown = {1: "", -1: "-"}.get(int(over), str(over))
        prompt = rf"Evaluate $\int_{{{low}}}^{{{high}}} {shown}e^{{{power}}}\,dx$ exactly."
    return Problem(prompt, steps, answer, 4, "exact")


def tangent(rng: random.Random) -> Problem:
    """Where a tangent meets the axis of y."""
    coefficients = [nonzero(rng, 4), *(rng.randint(-9, 9) for _ in range(rng.randint(2, 3)))]
    x = nonzero(rng, 4)
    y, m = _value(coefficients, x), _value(_derive(coefficients), x)
    value = y - m * x
    steps = f"y({x}) = {y}; y' = {polynomial(_derive(coefficients))}; slope {m}; {y} - ({m})*({x}) = {value}"
    prompt = (
        f"The tangent to $y = {polynomial(coefficients)}$ at $x = {x}$ meets the $y$-axis at $(0, "
        f"b)$. Find $b$."
    )
    return Problem(prompt, steps, latex(value), 5)


def limit(rng: random.Random) -> Problem:
    """A quotient of polynomials with a common root."""
    r, s, t = rng.randint(-9, 9), rng.randint(-9, 9), rng.randint(-9, 9)
    a, b = nonzero(rng, 6), nonzero(rng, 6)
    if r == t or s == r:
        return limit(rng)
    top, low = [a, -a * (r + s), a * r * s], [b, -b * (r + t), b * r * t]
    value = Fraction(a * (r - s), b * (r - t))
    steps = (
        f"both have the factor (x - ({r})); what is left: {a}(x - ({s})) over {b}(x - ({t})); at "
        f"{r}: {latex(value)}"
    )
    prompt = rf"Find $\lim_{{x \to {r}}} \frac{{{polynomial(top)}}}{{{polynomial(low)}}}$."
    return Problem(prompt, steps, latex(value), 5)


def extremum(rng: random.Random) -> Problem:
    """Greatest value of a cubic on an interval: ends and inner points."""
    p, q = sorted(rng.sample(range(-6, 7), 2))
    a, shift = nonzero(rng, 3), rng.randint(-20, 20)
    if (p + q) % 2:
        return extremum(rng)
    coefficients = [2 * a, -3 * a * (p + q), 6 * a * p * q, shift]
    low, high = sorted(rng.sample(range(-8, 9), 2))
    points = sorted({low, high, *(x for x in (p, q) if low < x < high)})
    values = {x: int(_value(coefficients, x)) for x in points}
    word, best = rng.choice((("maximum", max), ("minimum", min)))
    value = best(values.values())
    steps = (
        f"f' = {6 * a}(x - ({p}))(x - ({q})); "
        + "; ".join(f"f({x}) = {y}" for x, y in values.items())
        + f"; {value}"
    )
    prompt = (
        f"What is the {word} value of $f(x) = {polynomial(coefficients)}$ for ${low} \\le x \\le {high}$?"
    )
    return Problem(prompt, steps, str(value), 3 + len(points))


FAMILIES = {
    "derivative": derivative,
    "slope": slope,
    "integral": integral,
    "log_integral": logarithm_integral,
    "tangent": tangent,
    "limit": limit,
    "extremum": extremum,
}
