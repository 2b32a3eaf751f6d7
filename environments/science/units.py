"""Conversions between units, and units expressed in base units."""

import random

from environments.science.problem import ScienceProblem
from environments.science.quantities import BASES, read_unit, rounded

GROUPS = (
    ("km", "mi", "ft", "yd", "in", "m", "cm"),
    ("kg", "lb", "oz", "g", "t"),
    ("L", "gal", "m^3", "cm^3", "in^3", "ft^3"),
    ("m/s", "km/h", "mi/h", "ft/s", "m/min"),
    ("m^2", "ha", "acre", "ft^2", "km^2"),
    ("J", "cal", "kJ", "W h", "eV"),
    ("Pa", "bar", "atm", "kPa"),
    ("g/cm^3", "kg/m^3", "lb/ft^3", "oz/in^3"),
    ("L/min", "m^3/h", "gal/min", "cm^3/s"),
)
QUANTITIES = {
    "force": "N",
    "energy": "J",
    "power": "W",
    "pressure": "Pa",
    "charge": "C",
    "voltage": "V",
    "resistance": "ohm",
    "capacitance": "F",
    "magnetic flux density": "T",
    "inductance": "H",
    "frequency": "Hz",
    "speed": "m s^-1",
    "acceleration": "m s^-2",
    "density": "kg m^-3",
    "area": "m^2",
    "volume": "m^3",
    "time": "s",
    "mass": "kg",
    "length": "m",
    "current": "A",
    "temperature": "K",
    "molar mass": "kg mol^-1",
    "momentum": "kg m s^-1",
}


def conversion(rng: random.Random) -> ScienceProblem:
    """A number in one unit, wanted in another."""
    group = rng.choice(GROUPS)
    first, second = rng.sample(group, 2)
    amount = rng.randint(11, 9999) / rng.choice((1, 10, 100))
    one, other = read_unit(first)[0], read_unit(second)[0]
    value = float(amount * float(one / other))
    steps = (
        f"1 {first} = {rounded(float(one / other), 6)} {second}; {amount:g} times that is "
        f"{rounded(value, 5)} {second}"
    )
    return ScienceProblem(f"Convert {amount:g} {first} to {second}.", steps, value, 2, unit=second, figures=4)


def dimensions(rng: random.Random) -> ScienceProblem:
    """The unit of a product of powers of quantities."""
    names = rng.sample(list(QUANTITIES), 3)
    powers = [rng.choice((1, 1, 2)), rng.choice((1, -1)), rng.choice((-1, -2, 1))]
    exponents = [0] * len(BASES)
    for name, power in zip(names, powers, strict=True):
        exponents = [e + power * u for e, u in zip(exponents, read_unit(QUANTITIES[name])[1], strict=True)]
    if not any(exponents):
        return dimensions(rng)
    answer = " ".join(
        base if e == 1 else f"{base}^{e}" for base, e in zip(BASES, exponents, strict=True) if e
    )
    words = {
        1: "{}",
        2: "the square of {}",
        -1: "the reciprocal of {}",
        -2: "the reciprocal of the square of {}",
    }
    product = ", ".join(words[power].format(name) for name, power in zip(names, powers, strict=True))
    steps = "; ".join(f"{name}: {_base(QUANTITIES[name])}" for name in names) + f"; product: {answer}"
    prompt = (
        f"Which unit has the product of these quantities: {product}? Write it with SI base units only, "
        f"as in kg m^2 s^-3."
    )
    return ScienceProblem(prompt, steps, answer, 4, "unit")


def _base(unit: str) -> str:
    exponents = read_unit(unit)[1]
    return " ".join(base if e == 1 else f"{base}^{e}" for base, e in zip(BASES, exponents, strict=True) if e)


FAMILIES = {"conversion": conversion, "dimensions": dimensions}
