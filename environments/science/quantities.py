"""Numbers with units: reading what was written, converting it, and comparing to a number of figures."""

import math
import re
from fractions import Fraction

from environments.mathematics.reading import read_number

# Base units in the order of the exponents.
BASES = ("m", "kg", "s", "A", "K", "mol")
PREFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "c": Fraction(1, 100),
    "d": Fraction(1, 10),
    "h": Fraction(100),
    "k": Fraction(1000),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
}


def _unit(factor: Fraction | int | str, **exponents: int) -> tuple[Fraction, tuple[int, ...]]:
    return Fraction(factor), tuple(exponents.get(base, 0) for base in BASES)


# Exact by definition (BIPM, SI brochure 2019; international yard and pound 1959).
UNITS = {
    "m": _unit(1, m=1),
    "g": _unit("1/1000", kg=1),
    "s": _unit(1, s=1),
    "A": _unit(1, A=1),
    "K": _unit(1, K=1),
    "mol": _unit(1, mol=1),
    "N": _unit(1, kg=1, m=1, s=-2),
    "J": _unit(1, kg=1, m=2, s=-2),
    "W": _unit(1, kg=1, m=2, s=-3),
    "Pa": _unit(1, kg=1, m=-1, s=-2),
    "Hz": _unit(1, s=-1),
    "C": _unit(1, A=1, s=1),
    "V": _unit(1, kg=1, m=2, s=-3, A=-1),
    "ohm": _unit(1, kg=1, m=2, s=-3, A=-2),
    "F": _unit(1, kg=-1, m=-2, s=4, A=2),
    "T": _unit(1, kg=1, s=-2, A=-1),
    "H": _unit(1, kg=1, m=2, s=-2, A=-2),
    "Wb": _unit(1, kg=1, m=2, s=-2, A=-1),
    "L": _unit("1/1000", m=3),
    "min": _unit(60, s=1),
    "h": _unit(3600, s=1),
    "d": _unit(86400, s=1),
    "ha": _unit(10_000, m=2),
    "t": _unit(1000, kg=1),
    "bar": _unit(100_000, kg=1, m=-1, s=-2),
    "atm": _unit(101_325, kg=1, m=-1, s=-2),
    "eV": _unit(Fraction(1_602_176_634, 10**28), kg=1, m=2, s=-2),
    "cal": _unit("4.184", kg=1, m=2, s=-2),
    "in": _unit("0.0254", m=1),
    "ft": _unit("0.3048", m=1),
    "yd": _unit("0.9144", m=1),
    "mi": _unit("1609.344", m=1),
    "lb": _unit("0.45359237", kg=1),
    "oz": _unit("0.028349523125", kg=1),
    "gal": _unit("0.003785411784", m=3),
    "acre": _unit("4046.8564224", m=2),
}
_PREFIXED = {
    "m",
    "g",
    "s",
    "A",
    "K",
    "mol",
    "N",
    "J",
    "W",
    "Pa",
    "Hz",
    "C",
    "V",
    "ohm",
    "F",
    "T",
    "L",
    "eV",
    "bar",
    "cal",
}
_NUMERIC = re.compile(
    r"([+-]?\s*(?:\\frac\{\d+\}\{\d+\}|\d[\d,]*(?:\.\d*)?|\.\d+)(?:\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*\{?\s*[+-]?\d+\}?"
    r"|[eE][+-]?\d+)?)\s*(.*)"
)
_TERM = re.compile(r"([a-zA-Z]+)(?:\^?(-?\d{1,2}))?")


def read_unit(text: str) -> tuple[Fraction, tuple[int, ...]] | None:
    """Factor to SI base units and exponents of ``BASES``, of ``kg m^2 s^-3``, ``J/(mol K)`` or ``km/h``.

    None for what is no unit. After a slash everything counts as below it until a bracket closes or ends.
    """
    text = re.sub(r"\\(?:text|mathrm)\s*\{([^{}]*)\}", r" \1 ", text)
    text = (
        text.replace(r"\cdot", " ")
        .replace(r"\Omega", "ohm")
        .replace("Ω", "ohm")
        .replace("µ", "u")
        .replace("μ", "u")
    )
    text = re.sub(r"\s*\^\s*", "^", re.sub(r"[{}]", "", re.sub(r"[*·]", " ", text))).strip()
    factor, exponents = Fraction(1), [0] * len(BASES)
    for place, part in enumerate(text.split("/")):
        part = part.strip().removeprefix("(").removesuffix(")")
        if place and not part:
            return None
        for term in re.split(r"\s+", part):
            if term in ("", "1"):
                continue
            match = _TERM.fullmatch(term)
            unit = _named(match[1]) if match else None
            if unit is None:
                return None
            power = int(match[2] or 1) * (-1 if place else 1)
            factor *= unit[0] ** power
            exponents = [e + power * u for e, u in zip(exponents, unit[1], strict=True)]
    return factor, tuple(exponents)


def _named(name: str) -> tuple[Fraction, tuple[int, ...]] | None:
    if name in UNITS:
        return UNITS[name]
    prefix, rest = name[:1], name[1:]
    if prefix in PREFIXES and rest in _PREFIXED:
        factor, exponents = UNITS[rest]
        return PREFIXES[prefix] * factor, exponents
    return None


def read_quantity(text: str, unit: str) -> Fraction | None:
    """A written number in ``unit``: converted from its own unit, which may be left out. None for others."""
    text = re.sub(r"^[a-zA-Z](?:_\{?\w+\}?)?\s*(?:=|\\approx|≈)\s*|^(?:≈|\\approx|~)\s*", "", text.strip())
    text = re.sub(r"\^\{?\\circ\}?|°", " degrees", text)
    match = _NUMERIC.fullmatch(text)
    value = read_number(match[1].replace(" ", "")) if match else None
    if value is None:
        return None
    rest = re.sub(r"\\(?:text|mathrm)\s*\{([^{}]*)\}", r"\1", match[2]).strip()
    if not rest or rest.replace(" ", "") == unit.replace(" ", ""):
        return value
    given, wanted = read_unit(match[2]), read_unit(unit)
    if given is None or wanted is None or given[1] != wanted[1]:
        return None
    return value * given[0] / wanted[0]


def agrees(said: Fraction, value: float, figures: int) -> bool:
    """Whether a number is the value up to one unit of its last asked significant figure."""
    if value == 0:
        return said == 0
    step = 10.0 ** (math.floor(math.log10(abs(value))) - figures + 1)
    return abs(float(said) - value) <= step * 1.001


def rounded(value: float, figures: int) -> str:
    """``rounded(12345.6, 3)`` is ``1.23e4``; without an exponent where that is short."""
    text = f"{value:.{figures - 1}e}"
    mantissa, _, exponent = text.partition("e")
    power = int(exponent)
    if -3 <= power <= 6:
        return f"{float(text):.{max(0, figures - 1 - power)}f}"
    return rf"{mantissa} \times 10^{{{power}}}"
