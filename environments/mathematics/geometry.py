"""Lengths, areas, angles; answers with radicals and pi are exact."""

import random
from fractions import Fraction

from environments.mathematics.problem import Problem, latex, nonzero, root


def distance(rng: random.Random) -> Problem:
    x, y, u, v = (rng.randint(-15, 15) for _ in range(4))
    square = (x - u) ** 2 + (y - v) ** 2
    if square == 0:
        return distance(rng)
    value = root(square)
    steps = (
        rf"({u} - ({x}))^2 + ({v} - ({y}))^2 = {(x - u) ** 2} + {(y - v) ** 2} = {square}; "
        rf"\sqrt{{{square}}} = {value}"
    )
    prompt = f"Find the distance between $({x}, {y})$ and $({u}, {v})$. Give the exact value."
    return Problem(prompt, steps, value, 4, "exact")


def triangle(rng: random.Random) -> Problem:
    """The area of a triangle from its corners."""
    points = [(rng.randint(-12, 12), rng.randint(-12, 12)) for _ in range(3)]
    (x, y), (u, v), (s, t) = points
    doubled = (u - x) * (t - y) - (s - x) * (v - y)
    if doubled == 0:
        return triangle(rng)
    value = Fraction(abs(doubled), 2)
    steps = (
        f"sides from the first corner: ({u - x}, {v - y}) and ({s - x}, {t - y}); "
        f"{u - x}*({t - y}) - ({s - x})*({v - y}) = {doubled}; half of its size: {latex(value)}"
    )
    corners = ", ".join(f"$({a}, {b})$" for a, b in points)
    return Problem(f"Find the area of the triangle with the corners {corners}.", steps, latex(value), 4)


def polygon(rng: random.Random) -> Problem:
    """The area of a convex polygon by the shoelace formula."""
    ring = [
        (rng.randint(3, 9), rng.randint(-6, -1)),
        (rng.randint(5, 12), rng.randint(2, 8)),
        (rng.randint(-2, 2), rng.randint(9, 14)),
        (rng.randint(-12, -5), rng.randint(2, 8)),
        (rng.randint(-9, -3), rng.randint(-6, -1)),
    ]
    terms = [a * d - c * b for (a, b), (c, d) in zip(ring, [*ring[1:], ring[0]], strict=True)]
    value = Fraction(abs(sum(terms)), 2)
    steps = " + ".join(f"({term})" for term in terms) + f" = {sum(terms)}; half of it: {latex(value)}"
    corners = ", ".join(f"$({a}, {b})$" for a, b in ring)
    prompt = f"Find the area of the polygon whose corners in order are {corners}."
    return Problem(prompt, steps, latex(value), 7)


def circle(rng: random.Random) -> Problem:
    """Area between two circles, or of a sector."""
    small = rng.randint(1, 60)
    if rng.random() < 0.5:
        big = small + rng.randint(1, 40)
        value = big * big - small * small
        steps = rf"\pi({big}^2 - {small}^2) = \pi({big * big} - {small * small}) = {value}\pi"
        prompt = (
            f"Two circles have the same centre and the radii {small} and {big}. Find the exact area between "
            "them."
        )
        return Problem(prompt, steps, rf"{value}\pi", 3, "exact")
    angle = rng.choice(range(5, 360, 5))
    value = Fraction(angle, 360) * small * small
    answer = rf"{latex(value)}\pi" if value != 1 else r"\pi"
    steps = rf"{angle}/360 * {small}^2 * \pi = {answer}"
    prompt = f"Find the exact area of a sector with the angle {angle} degrees in a circle of radius {small}."
    return Problem(prompt, steps, answer, 3, "exact")


def right_triangle(rng: random.Random) -> Problem:
    """The missing side of a right triangle, which need not be whole."""
    a, b = rng.randint(2, 30), rng.randint(2, 30)
    if rng.random() < 0.5:
        value, square = root(a * a + b * b), a * a + b * b
        steps = rf"{a}^2 + {b}^2 = {square}; \sqrt{{{square}}} = {value}"
        prompt = (
            f"The legs of a right triangle are {a} and {b}. How long is the hypotenuse? Give the exact value."
        )
        return Problem(prompt, steps, value, 3, "exact")
    longest = max(a, b) + rng.randint(1, 9)
    square = longest**2 - a * a
    value = root(square)
    steps = rf"{longest}^2 - {a}^2 = {square}; \sqrt{{{square}}} = {value}"
    prompt = (
        f"The hypotenuse of a right triangle is {longest} and one leg is {a}. How long is the other "
        f"leg? Give the "
        "exact value."
    )
    return Problem(prompt, steps, value, 3, "exact")


def box(rng: random.Random) -> Problem:
    """The space diagonal of a box."""
    a, b, c = (rng.randint(1, 14) for _ in range(3))
    square = a * a + b * b + c * c
    value = root(square)
    steps = rf"{a}^2 + {b}^2 + {c}^2 = {square}; \sqrt{{{square}}} = {value}"
    prompt = f"A box has the edges {a}, {b} and {c}. Find the exact length of its space diagonal."
    return Problem(prompt, steps, value, 3, "exact")


def similar(rng: random.Random) -> Problem:
    """A side or an area of a similar figure."""
    side, other, area = rng.randint(2, 20), rng.randint(2, 20), rng.randint(3, 90)
    if side == other:
        return similar(rng)
    value = area * Fraction(other, side) ** 2
    steps = (
        f"factor {latex(Fraction(other, side))}; area times its square: "
        f"{area}*({latex(Fraction(other, side))})^2 = {latex(value)}"
    )
    figure = rng.choice(("triangles", "quadrilaterals", "pentagons", "hexagons"))
    prompt = (
        f"Two {figure} are similar. A side of the first is {side} cm long, the matching side of the "
        f"second {other} cm. "
        f"The area of the first is {area} cm^2. Find the area of the second in cm^2, as an exact number."
    )
    return Problem(prompt, steps, latex(value), 4, unit="cm^2")


def line_distance(rng: random.Random) -> Problem:
    """From a point to a line whose normal has a whole length."""
    a, b, length = rng.choice(((3, 4, 5), (5, 12, 13), (8, 15, 17), (4, 3, 5), (12, 5, 13), (7, 24, 25)))
    c, x, y, sign = nonzero(rng, 40), rng.randint(-15, 15), rng.randint(-15, 15), rng.choice((-1, 1))
    b *= sign
    value = Fraction(abs(a * x + b * y + c), length)
    steps = (
        f"|{a}*({x}) + ({b})*({y}) + ({c})| = {abs(a * x + b * y + c)}; divided by {length}: {latex(value)}"
    )
    line = f"{a}x {'-' if b < 0 else '+'} {abs(b)}y {'-' if c < 0 else '+'} {abs(c)} = 0"
    return Problem(
        f"Find the distance of the point $({x}, {y})$ from the line ${line}$.", steps, latex(value), 4
    )


FAMILIES = {
    "distance": distance,
    "triangle": triangle,
    "circle": circle,
    "right_triangle": right_triangle,
    "box": box,
    "similar": similar,
    "line_distance": line_distance,
    "polygon": polygon,
}
