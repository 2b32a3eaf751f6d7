"""Divisors, remainders, bases."""

import math
import random

from environments.mathematics.problem import Problem


def _factors(number: int) -> dict[int, int]:
    found, prime = {}, 2
    while prime * prime <= number:
        while number % prime == 0:
            found[prime] = found.get(prime, 0) + 1
            number //= prime
        prime += 1
    if number > 1:
        found[number] = found.get(number, 0) + 1
    return found


def _product(factors: dict[int, int]) -> str:
    return "*".join(f"{p}^{e}" if e > 1 else str(p) for p, e in factors.items())


def common_divisor(rng: random.Random) -> Problem:
    """Greatest common divisor by Euclid's steps, or the least common multiple."""
    shared = rng.randint(2, 60)
    a, b = (shared * rng.randint(5, 90) for _ in range(2))
    lines, x, y = [], max(a, b), min(a, b)
    while y:
        lines.append(f"{x} = {x // y}*{y} + {x % y}")
        x, y = y, x % y
    if rng.random() < 0.5:
        return Problem(
            f"Find the greatest common divisor of {a} and {b}.", "; ".join(lines), str(x), len(lines)
        )
    value = a * b // x
    steps = "; ".join([*lines, f"{a}*{b}/{x} = {value}"])
    return Problem(f"Find the least common multiple of {a} and {b}.", steps, str(value), len(lines) + 1)


def divisors(rng: random.Random) -> Problem:
    """How many divisors a number has, or their sum."""
    number = math.prod(rng.choice((2, 2, 3, 3, 5, 7, 11, 13)) for _ in range(rng.randint(3, 7)))
    number *= rng.choice((1, 17, 19, 23, 29, 31, 37))
    factors = _factors(number)
    if rng.random() < 0.5:
        value = math.prod(e + 1 for e in factors.values())
        steps = (
            f"{number} = {_product(factors)}; "
            + "*".join(f"({e}+1)" for e in factors.values())
            + f" = {value}"
        )
        prompt = f"How many positive divisors does {number} have?"
    else:
        sums = [sum(p**k for k in range(e + 1)) for p, e in factors.items()]
        value = math.prod(sums)
        steps = f"{number} = {_product(factors)}; " + "*".join(map(str, sums)) + f" = {value}"
        prompt = f"What is the sum of all positive divisors of {number}?"
    return Problem(prompt, steps, str(value), len(factors) + 1)


def power_remainder(rng: random.Random) -> Problem:
    """A power modulo a number, by squaring."""
    modulus, base, exponent = rng.randint(7, 120), rng.randint(2, 60), rng.randint(10, 400)
    value, lines = 1, []
    for bit in f"{exponent:b}":
        square = value * value * (base if bit == "1" else 1)
        lines.append(f"{value}^2{f'*{base}' if bit == '1' else ''} = {square} = {square % modulus}")
        value = square % modulus
    steps = f"{exponent} = {exponent:b} in binary; modulo {modulus}: " + "; ".join(lines)
    prompt = f"What is the remainder when ${base}^{{{exponent}}}$ is divided by {modulus}?"
    return Problem(prompt, steps, str(value), len(lines))


def inverse(rng: random.Random) -> Problem:
    """The inverse modulo a number, by the extended algorithm of Euclid."""
    modulus, number = rng.randint(11, 300), rng.randint(2, 299)
    if number >= modulus or math.gcd(number, modulus) != 1:
        return inverse(rng)
    lines, (r0, r1), (t0, t1) = [], (modulus, number), (0, 1)
    while r1:
        q = r0 // r1
        r0, r1, t0, t1 = r1, r0 - q * r1, t1, t0 - q * t1
        lines.append(f"quotient {q}, rest {r1}, factor {t1}")
    value = t0 % modulus
    steps = "; ".join([*lines, f"{number}*{value} = {number * value} = 1 modulo {modulus}"])
    prompt = f"Find the integer $x$ with $0 < x < {modulus}$ and ${number}x \\equiv 1 \\pmod{{{modulus}}}$."
    return Problem(prompt, steps, str(value), len(lines) + 1)


def bases(rng: random.Random) -> Problem:
    """A number written in another base."""
    base, number = rng.choice((2, 3, 4, 5, 6, 7, 8, 9)), rng.randint(60, 5000)
    digits, rest, lines = "", number, []
    while rest:
        lines.append(f"{rest} = {base}*{rest // base} + {rest % base}")
        digits, rest = str(rest % base) + digits, rest // base
    if rng.random() < 0.5:
        prompt = f"Write the number {number} in base {base}. Give its digits only."
        return Problem(prompt, "; ".join([*lines, digits]), digits, len(lines))
    terms = " + ".join(f"{d}*{base}^{len(digits) - 1 - i}" for i, d in enumerate(digits))
    prompt = f"The digits {digits} stand for a number in base {base}. Which number is it in base ten?"
    return Problem(prompt, f"{terms} = {number}", str(number), len(digits))


def remainders(rng: random.Random) -> Problem:
    """The least number with given remainders (the Chinese remainder theorem)."""
    moduli = rng.sample((3, 4, 5, 7, 11, 13), 3)
    product = math.prod(moduli)
    value = rng.randrange(1, product)
    found, step, lines = value % moduli[0], moduli[0], []
    for modulus in moduli[1:]:
        while found % modulus != value % modulus:
            found += step
        step *= modulus
        lines.append(f"{found} has the right rest by {modulus} too; the next such number is {found + step}")
    rules = ", ".join(f"{value % m} when divided by {m}" for m in moduli)
    prompt = f"What is the smallest positive integer that leaves the remainders {rules}?"
    return Problem(prompt, "; ".join(lines), str(value), 2 * len(moduli))


def trailing_zeros(rng: random.Random) -> Problem:
    """Zeros at the end of a factorial, in some base."""
    number, prime = rng.randint(20, 900), rng.choice((2, 3, 5, 7))
    parts, power = [], prime
    while power <= number:
        parts.append(number // power)
        power *= prime
    total = sum(parts)
    steps = " + ".join(map(str, parts)) + f" = {total}"
    prompt = f"What is the largest $k$ such that ${prime}^k$ divides ${number}!$?"
    return Problem(prompt, steps, str(total), len(parts))


FAMILIES = {
    "common_divisor": common_divisor, "divisors": divisors, "power_remainder": power_remainder,
    "inverse": inverse, "bases": bases, "trailing_zeros": trailing_zeros, "remainders": remainders,
}  # fmt: skip
