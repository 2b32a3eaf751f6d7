"""Elements, nuclides, formulas, reactions, solutions."""

import math
import random

from environments.science.problem import ScienceProblem
from environments.science.quantities import rounded
from environments.science.tables import by_number, elements, isotopes, weight

# Ions by charge; a bracket is needed when a polyatomic one occurs more than once.
CATIONS = {
    "Li": 1,
    "Na": 1,
    "K": 1,
    "Ag": 1,
    "Mg": 2,
    "Ca": 2,
    "Sr": 2,
    "Ba": 2,
    "Zn": 2,
    "Ni": 2,
    "Al": 3,
    "Cr": 3,
}
ANIONS = {
    "F": (1, {"F": 1}),
    "Cl": (1, {"Cl": 1}),
    "Br": (1, {"Br": 1}),
    "I": (1, {"I": 1}),
    "O": (2, {"O": 1}),
    "S": (2, {"S": 1}),
    "NO3": (1, {"N": 1, "O": 3}),
    "ClO4": (1, {"Cl": 1, "O": 4}),
    "SO4": (2, {"S": 1, "O": 4}),
    "CO3": (2, {"C": 1, "O": 3}),
    "PO4": (3, {"P": 1, "O": 4}),
    "OH": (1, {"O": 1, "H": 1}),
}
ACIDS = {
    "HCl": (1, "Cl"),
    "HBr": (1, "Br"),
    "HNO3": (1, "NO3"),
    "HClO4": (1, "ClO4"),
    "H2SO4": (2, "SO4"),
    "H3PO4": (3, "PO4"),
}
UNIT_NAMES = {"second": "s", "minute": "min", "hour": "h", "day": "d", "year": "years"}


def _count(symbol: str, number: int) -> str:
    return symbol if number == 1 else f"{symbol}{number}"


def salt(cation: str, anion: str) -> tuple[str, int, int]:
    """Formula of a salt and how many of each ion it has."""
    plus, (minus, atoms) = CATIONS[cation], ANIONS[anion]
    common = math.gcd(plus, minus)
    m, n = minus // common, plus // common
    bracket = n > 1 and (len(atoms) > 1 or sum(atoms.values()) > 1)
    return _count(cation, m) + (f"({anion}){n}" if bracket else _count(anion, n)), m, n


def _organic(rng: random.Random) -> tuple[str, dict[str, int]]:
    c = rng.randint(1, 18)
    h = rng.randint(max(1, c // 2), 2 * c + 2)
    h += h % 2  # an even number keeps the valences right
    o = rng.randint(0, 5)
    atoms = {"C": c, "H": h, **({"O": o} if o else {})}
    return "".join(_count(symbol, number) for symbol, number in atoms.items()), atoms


def _compound(rng: random.Random) -> tuple[str, dict[str, int]]:
    if rng.random() < 0.5:
        return _organic(rng)
    cation, anion = rng.choice(list(CATIONS)), rng.choice(list(ANIONS))
    formula, m, n = salt(cation, anion)
    atoms = {cation: m}
    for symbol, number in ANIONS[anion][1].items():
        atoms[symbol] = atoms.get(symbol, 0) + number * n
    return formula, atoms


def _molar(atoms: dict[str, int]) -> float:
    return sum(weight(symbol) * number for symbol, number in atoms.items())


def _sum(atoms: dict[str, int]) -> str:
    return " + ".join(f"{number}*{weight(symbol):.4g}" for symbol, number in atoms.items())


def molar_mass(rng: random.Random) -> ScienceProblem:
    """Of a compound, or the amount that a mass of it is."""
    formula, atoms = _compound(rng)
    mass = _molar(atoms)
    if rng.random() < 0.4:
        return ScienceProblem(
            f"What is the molar mass of {formula} in g/mol?",
            f"{_sum(atoms)} = {rounded(mass, 5)}",
            mass,
            3,
            unit="g/mol",
        )
    grams = rng.randint(10, 5000) / 10
    if rng.random() < 0.5:
        value = grams / mass
        return ScienceProblem(
            f"How many mol are {grams:g} g of {formula}?",
            f"{_sum(atoms)} = {rounded(mass, 5)} g/mol; {grams:g}/{rounded(mass, 5)} = {rounded(value, 5)}",
            value,
            4,
            unit="mol",
        )
    symbol = rng.choice(list(atoms))
    value = 100 * weight(symbol) * atoms[symbol] / mass
    return ScienceProblem(
        f"How many grams of {elements()[symbol]['name'].lower()} are in {grams:g} g of {formula}?",
        f"{_sum(atoms)} = {rounded(mass, 5)} g/mol; share of {symbol}: {rounded(value, 5)} %; "
        f"{rounded(value * grams / 100, 5)} g",
        value * grams / 100,
        5,
        unit="g",
    )


def balance(rng: random.Random) -> ScienceProblem:
    """The smallest whole coefficients of a reaction."""
    kind = rng.choice((0, 0, 0, 1, 2))
    if kind == 0:
        formula, atoms = _organic(rng)
        c, h, o = atoms["C"], atoms["H"], atoms.get("O", 0)
        parts = [4, 4 * c + h - 2 * o, 4 * c, 2 * h]
        if parts[1] <= 0:
            return balance(rng)
        left, right = f"{formula} + O2", "CO2 + H2O"
    elif kind == 1:
        cation, acid = rng.choice([c for c in CATIONS if c != "Ag"]), rng.choice(list(ACIDS))
        protons, anion = ACIDS[acid]
        product, m, n = salt(cation, anion)
        base, _, hydroxides = salt(cation, "OH")
        parts = [m, n, 1, m * hydroxides]
        left, right = f"{base} + {acid}", f"{product} + H2O"
    else:
        metal, acid = (
            rng.choice(("Li", "Na", "K", "Mg", "Ca", "Zn", "Al", "Ni")),
            rng.choice(("HCl", "HBr", "H2SO4", "H3PO4")),
        )
        protons, anion = ACIDS[acid]
        product, m, n = salt(metal, anion)
        parts = [2 * m, 2 * n, 2, n * protons]
        left, right = f"{metal} + {acid}", f"{product} + H2"
    common = math.gcd(*parts)
    parts = [part // common for part in parts]
    answer = ", ".join(map(str, parts))
    prompt = (
        f"Balance the reaction {left} -> {right} with the smallest whole numbers. Give the four "
        f"coefficients in this order, "
        "separated by commas."
    )
    return ScienceProblem(prompt, f"equal atoms of each element on both sides: {answer}", answer, 4, "list")


def stoichiometry(rng: random.Random) -> ScienceProblem:
    """Masses in a combustion."""
    formula, atoms = _organic(rng)
    grams = rng.randint(10, 3000) / 10
    c, h, o = atoms["C"], atoms["H"], atoms.get("O", 0)
    oxygen = c + h / 4 - o / 2
    if oxygen <= 0:
        return stoichiometry(rng)
    what, ratio, other, verb = rng.choice(
        (
            ("carbon dioxide", c, {"C": 1, "O": 2}, "are formed"),
            ("water", h / 2, {"H": 2, "O": 1}, "are formed"),
            ("oxygen (O2)", oxygen, {"O": 2}, "are used up"),
        )
    )
    value = grams / _molar(atoms) * ratio * _molar(other)
    steps = (
        f"{rounded(_molar(atoms), 5)} g/mol; {rounded(grams / _molar(atoms), 5)} mol; times {ratio:g} is "
        f"{rounded(grams / _molar(atoms) * ratio, 5)} mol; times {rounded(_molar(other), 5)} g/mol is "
        f"{rounded(value, 5)} g"
    )
    prompt = (
        f"{grams:g} g of {formula} burn completely to carbon dioxide and water. How many grams of "
        f"{what} {verb}?"
    )
    return ScienceProblem(prompt, steps, value, 6, unit="g")


def decay(rng: random.Random) -> ScienceProblem:
    """How much of a nuclide is left, or how long it takes."""
    row = rng.choice(isotopes())
    unit, half = UNIT_NAMES[row["unit"]], float(row["half_life"])
    start = rng.randint(10, 900)
    name = f"{elements()[row['symbol']]['name'].lower()}-{row['mass']}"
    given = f"The half-life of {name} is {half:g} {unit}."
    if rng.random() < 0.5:
        time = float(f"{half * rng.randint(20, 400) / 100:.3g}")
        value = start * 0.5 ** (time / half)
        return ScienceProblem(
            f"{given} How many mg of {start} mg are left after {time:g} {unit}?",
            f"{time:g}/{half:g} = {rounded(time / half, 5)} half-lives; "
            f"{start}*0.5^{rounded(time / half, 5)} = {rounded(value, 5)}",
            value,
            3,
            unit="mg",
        )
    percent = rng.randint(1, 90)
    value = half * math.log2(100 / percent)
    return ScienceProblem(
        f"{given} After how many {unit} is {percent} % of it left?",
        f"log2(100/{percent}) = {rounded(math.log2(100 / percent), 5)} half-lives; {rounded(value, 5)} "
        f"{unit}",
        value,
        3,
        unit=unit,
    )


def nuclide(rng: random.Random) -> ScienceProblem:
    """What a nuclide becomes after some decays."""
    row = rng.choice([row for row in isotopes() if int(elements()[row["symbol"]]["number"]) > 20])
    number, mass = int(elements()[row["symbol"]]["number"]), int(row["mass"])
    alphas, betas = rng.randint(0, min(4, (number - 12) // 2)), rng.randint(0, 4)
    if alphas + betas == 0:
        return nuclide(rng)
    after, left = number - 2 * alphas + betas, mass - 4 * alphas
    if after not in by_number():
        return nuclide(rng)
    answer = f"{by_number()[after]}-{left}"
    order = rng.choice(("in some order", "one after another"))
    prompt = (
        f"A nucleus of {row['symbol']}-{mass} goes through {alphas} alpha and {betas} beta-minus "
        f"decays {order}. Which nuclide "
        "is left? Write it as in U-238."
    )
    steps = (
        f"charge {number} - 2*{alphas} + {betas} = {after}, {by_number()[after]}; mass {mass} - "
        f"4*{alphas} = {left}"
    )
    return ScienceProblem(prompt, steps, answer, 3, "words")


PROPERTIES = {
    "electronegativity": ("electronegativity (Pauling)", 0.05),
    "ionisation": ("first ionisation energy", 0.15),
    "density": ("density at room conditions", 0.05),
    "melting": ("melting point", 15.0),
    "weight": ("atomic weight", 1.0),
}


def ordering(rng: random.Random) -> ScienceProblem:
    """Elements by a property, from the smallest value to the largest."""
    key = rng.choice(list(PROPERTIES))
    words, apart = PROPERTIES[key]
    known = [row for row in elements().values() if row[key] and int(row["number"]) < 87]
    chosen = rng.sample(known, 4)
    ordered = sorted(chosen, key=lambda row: float(row[key]))
    values = [float(row[key]) for row in ordered]
    if any(b - a < max(apart, 0.05 * b) for a, b in zip(values, values[1:], strict=False)):
        return ordering(rng)
    answer = ", ".join(row["symbol"] for row in ordered)
    steps = ", ".join(f"{row['symbol']} {float(row[key]):.4g}" for row in ordered)
    names = ", ".join(f"{row['name'].lower()} ({row['symbol']})" for row in chosen)
    prompt = (
        f"Order {names} by their {words}, from the smallest to the largest. Give the symbols, "
        f"separated by commas."
    )
    return ScienceProblem(prompt, steps, answer, 4, "words")


def solutions(rng: random.Random) -> ScienceProblem:
    """Concentrations and dilutions, kept for evaluation."""
    formula, atoms = _compound(rng)
    if rng.random() < 0.5:
        volume, target = rng.randint(50, 2000), rng.randint(5, 200) / 100
        value = volume / 1000 * target * _molar(atoms)
        steps = (
            f"{volume / 1000:g} L * {target:g} mol/L * {rounded(_molar(atoms), 5)} g/mol = "
            f"{rounded(value, 5)} g"
        )
        return ScienceProblem(
            f"How many grams of {formula} are needed for {volume} mL of a solution of {target:g} mol/L?",
            steps,
            value,
            4,
            unit="g",
        )
    strong, weak, volume = rng.randint(20, 120) / 10, rng.randint(5, 190) / 100, rng.randint(50, 2000)
    value = volume * weak / strong
    steps = f"{volume}*{weak:g}/{strong:g} = {rounded(value, 5)} mL"
    return ScienceProblem(
        f"How many mL of a solution of {formula} with {strong:g} mol/L are diluted to get {volume} mL "
        f"with {weak:g} mol/L?",
        steps,
        value,
        3,
        unit="mL",
    )


FAMILIES = {
    "molar_mass": molar_mass,
    "balance": balance,
    "stoichiometry": stoichiometry,
    "decay": decay,
    "nuclide": nuclide,
    "ordering": ordering,
    "solutions": solutions,
}
