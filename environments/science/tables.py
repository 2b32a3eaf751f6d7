"""The tables of this folder as rows; read when the first of them is asked for."""

import csv
from functools import cache
from pathlib import Path


def _rows(name: str) -> list[dict[str, str]]:
    with open(Path(__file__).parent / name, newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


@cache
def elements() -> dict[str, dict[str, str]]:
    """Rows by symbol: name, number, group, period, weight (g/mol), electronegativity (Pauling), ionisation
    (eV), density (g/cm^3), melting (K); an empty text where nothing is known.
    """
    return {row["symbol"]: row for row in _rows("elements.csv")}


@cache
def by_number() -> dict[int, str]:
    return {int(row["number"]): symbol for symbol, row in elements().items()}


@cache
def isotopes() -> list[dict[str, str]]:
    """Nuclides that decay in one way only: symbol, mass (number), half_life, unit, decay ("A" or "B-")."""
    return _rows("isotopes.csv")


def weight(symbol: str) -> float:
    """Standard atomic weight in g/mol."""
    return float(elements()[symbol]["weight"])
