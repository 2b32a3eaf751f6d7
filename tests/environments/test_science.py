"""Science: answers equal other computations, units convert, close answers and other units score 0."""

import asyncio
import json
import math
import random
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import pytest

from environments.interface import MODES, Task, play
from environments.mathematics.reading import tidy
from environments.science.environment import Science, is_right
from environments.science.quantities import agrees, read_quantity, read_unit, rounded
from environments.science.tables import elements, isotopes
from pipeline.errors import UserError

SCIENCE = Science()
FAMILIES = SCIENCE.families + SCIENCE.evaluation_only


def tasks(family, count):
    first = random.Random(family).randrange(10**6)
    return [SCIENCE.make_task(family, first + n, family in SCIENCE.evaluation_only) for n in range(count)]


def verdicts(attempts):
    async def run():
        return await asyncio.gather(*(play(SCIENCE, task, messages) for task, messages in attempts))

    return [verdict.reward for _, verdict in asyncio.run(run())]


def say(text):
    return [{"role": "assistant", "content": text}]


@pytest.mark.parametrize("family", FAMILIES)
def test_oracle_one_nothing_zero_three_runs_equal(family):
    found = tasks(family, 60)
    attempts = [(task, SCIENCE.oracle(task, mode)) for task in found for mode in MODES]
    for _ in range(3):
        assert set(verdicts(attempts)) == {1.0}
    for nothing in ([], say(""), say("I do not know."), say(found[0].messages[0]["content"])):
        assert set(verdicts([(task, nothing) for task in found])) == {0.0}
    for task in found[:5]:
        assert [bool(SCIENCE.oracle(task, mode)[0].get("reasoning_content")) for mode in MODES] == [
            mode != "off" for mode in MODES
        ]


@pytest.mark.parametrize("family", FAMILIES)
def test_tasks_repeat_are_plain_data_and_differ(family):
    found = tasks(family, 200)
    assert [SCIENCE.make_task(family, task.seed, task.heldout) for task in found[:10]] == found[:10]
    assert Task.from_record(json.loads(json.dumps(found[0].to_record()))) == found[0]
    assert len({task.messages[0]["content"] for task in found}) > 130
    if family in SCIENCE.evaluation_only:
        with pytest.raises(UserError, match="kept for evaluation"):
            SCIENCE.make_task(family, 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_close_answers_are_wrong(family):
    for task in tasks(family, 40):
        truth = task.truth
        if truth["kind"] == "quantity":
            value, figures = truth["answer"], truth["figures"]
            step = 10 ** (math.floor(math.log10(abs(value))) - figures + 1)
            wrong = [value + 1.6 * step, value - 1.6 * step, -value, value * 10, value / 1000, value * 1.02]
            texts = [f"{number:.8e}" for number in wrong] + [
                f"{value:.8e} kg m^9",
                f"{value} or {value * 2}",
                f"{value} {value}",
            ]
            assert is_right(f"{value:.8e}", truth) and is_right(f"{value + 0.5 * step:.10e}", truth)
        elif truth["kind"] == "list":
            parts = truth["answer"].split(", ")
            doubled = ", ".join(str(2 * int(part)) for part in parts)
            texts = [
                doubled,
                ", ".join(parts[1:]),
                ", ".join([*parts, "1"]),
                ", ".join([str(int(parts[0]) + 1), *parts[1:]]),
            ]
        elif truth["kind"] == "unit":
            texts = [
                truth["answer"] + " m",
                truth["answer"] + " kg^-1",
                "g",
                "x",
                "1/(" + truth["answer"] + ")",
            ]
        else:
            parts = truth["answer"].split(", ")
            texts = [
                ", ".join([*parts[1:], parts[0]]) + "x",
                truth["answer"] + "1",
                "He-3",
                ", ".join(parts[::-1]) + ", H",
            ]
        assert set(verdicts([(task, say(rf"\boxed{{{text}}}")) for text in texts])) == {0.0}, truth


@pytest.mark.parametrize(
    "text, unit, value",
    [
        ("4.18 kJ", "J", 4180),
        ("4180", "J", 4180),
        ("4.18e3 J", "kJ", "4.18"),
        (
            r"4.18 \times 10^{3}\ "
            r"\text{J}",
            "J",
            4180,
        ),
        ("36 km/h", "m/s", 10),
        ("1 L", "cm^3", 1000),
        ("1 g/cm^3", "kg/m^3", 1000),
        ("2 J/(g K)", "J/(kg K)", 2000),
        ("E = 5 N m", "J", 5),
        (r"3 \mathrm{m}", "cm", 300),
        ("1 mi", "km", "1.609344"),
        ("1 lb", "g", "453.59237"),
        (r"30^\circ", "degrees", 30),
        ("7 years", "years", 7),
        ("1,200 m", "km", "1.2"),
        ("2 kWh", "J", None),
        ("5 kg", "m", None),
        ("5 apples", "m", None),
        ("five m", "m", None),
        ("5 m 6 m", "m", None),
        ("", "m", None),
        ("1e999999 m", "m", None),
        ("5 m^2", "m", None),
        ("1 atm", "Pa", 101325),
        (r"\frac{1}{2} m", "cm", 50),
    ],
)
def test_quantities(text, unit, value):
    assert read_quantity(tidy(text), unit) == (None if value is None else Fraction(value))


def test_units_are_read_in_any_usual_form():
    newton = read_unit("N")
    for form in (
        "kg m s^-2",
        "kg*m/s^2",
        r"\text{kg}\cdot\text{m}/\text{s}^2",
        "m kg s^{-2}",
        "J/m",
        "kg m/(s^2)",
    ):
        assert read_unit(form) == newton, form
    for nothing in ("foo", "kg//m", "kg m^", "1/0", "kg^99", "^", "x" * 200):
        assert read_unit(nothing) != newton


def test_figures():
    assert (
        agrees(Fraction("4.18"), 4.1849, 3)
        and agrees(Fraction("4.19"), 4.1849, 3)
        and not agrees(Fraction("4.2"), 4.1849, 3)
    )
    assert (
        rounded(0.0012345, 3) == "0.00123"
        and rounded(12345, 3) == "12300"
        and rounded(6.022e23, 3) == r"6.02 \times 10^{23}"
    )
    assert rounded(9.999, 3) == "10.0" and rounded(-5.5, 3) == "-5.50"


def test_tables_are_those_of_the_wheel():
    rows = elements()
    assert len(rows) == 118 and float(rows["Fe"]["weight"]) == 55.845 and rows["Fe"]["name"] == "Iron"
    assert float(rows["H"]["ionisation"]) == 13.5984 and float(rows["F"]["electronegativity"]) == 3.98
    (tritium,) = [row for row in isotopes() if row["symbol"] == "H" and row["mass"] == "3"]
    assert (tritium["half_life"], tritium["unit"], tritium["decay"]) == ("12.32", "year", "B-")


def atoms_of(formula):
    counts = Counter()
    for bracket, times, symbol, number in re.findall(r"\(([^)]*)\)(\d*)|([A-Z][a-z]?)(\d*)", formula):
        if bracket:
            for inner, count in atoms_of(bracket).items():
                counts[inner] += count * int(times or 1)
        else:
            counts[symbol] += int(number or 1)
    return counts


def test_reactions_are_balanced_with_the_smallest_numbers():
    for task in tasks("balance", 150):
        left, right = re.search(r"reaction (.*) -> (.*) with", task.messages[0]["content"]).groups()
        numbers = [int(part) for part in task.truth["answer"].split(", ")]
        assert min(numbers) > 0 and math.gcd(*numbers) == 1
        totals = [Counter(), Counter()]
        for side, formulas in enumerate((left, right)):
            for place, formula in enumerate(formulas.split(" + ")):
                for symbol, count in atoms_of(formula).items():
                    totals[side][symbol] += count * numbers[place + 2 * side]
        assert totals[0] == totals[1], task


def test_masses_follow_from_the_formula():
    for task in tasks("molar_mass", 100):
        text = task.messages[0]["content"]
        match = re.search(r"molar mass of (\S+) in|mol are ([\d.]+) g of (\S+)\?", text)
        if match:
            formula = match[1] or match[3]
            mass = sum(float(elements()[s]["weight"]) * n for s, n in atoms_of(formula).items())
            assert task.truth["answer"] == pytest.approx(mass if match[1] else float(match[2]) / mass)


def test_decay_and_conversion_by_another_way():
    for task in tasks("decay", 60):
        n = [
            float(x) for x in re.findall(r"(?<![\w-])\d+(?:\.\d+)?(?:e[+-]\d+)?", task.messages[0]["content"])
        ]
        if "are left" in task.messages[0]["content"]:
            assert task.truth["answer"] == pytest.approx(n[1] * math.exp(-math.log(2) * n[2] / n[0]))
        else:
            assert task.truth["answer"] == pytest.approx(-n[0] * math.log(n[1] / 100) / math.log(2))
    for task in tasks("conversion", 60):
        amount, first, second = re.search(
            r"Convert ([\d.]+) (.*) to (.*)\. "
            r"Give",
            task.messages[0]["content"],
        ).groups()
        assert float(read_quantity(f"{amount} {first}", second)) == pytest.approx(task.truth["answer"])


def test_dimensions_of_a_known_product():
    assert (
        read_unit("N m") == read_unit("J")
        and read_unit("V A") == read_unit("W")
        and read_unit("C/V") == read_unit("F")
    )
    assert (
        read_unit("Wb/m^2") == read_unit("T")
        and read_unit("V s/A") == read_unit("H")
        and read_unit("V/A") == read_unit("ohm")
    )


@pytest.mark.parametrize("family", ["mechanics", "balance", "dimensions", "ordering"])
def test_hostile_answers_score_zero(family):
    task = tasks(family, 1)[0]
    texts = [
        "9" * 10**6,
        "1e999999999",
        "m" * 10**5,
        "kg^" * 10**4,
        "/" * 10**5,
        "(" * 10**5,
        "1," * 10**5,
        "\x00",
        "\ud800",
        r"\text{" * 10**4,
        "m " * 140,
        "nnnnnn",
        "1 " + "k" * 200,
        "kg^9 " * 60,
    ]
    assert set(verdicts([(task, say(form)) for text in texts for form in (text, rf"\boxed{{{text}}}")])) == {
        0.0
    }


def test_nothing_heavy_is_loaded():
    program = (
        "import sys, environments.science.environment; print([m for m in ('sympy', 'numpy', "
        "'pandas') if m in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert output.strip() == "[]"


@pytest.mark.parametrize(("kind", "answer"), [("unit", "no unit"), ("list", "1, two")])
def test_a_right_answer_that_cannot_be_read_equals_nothing(kind, answer):
    assert not is_right("neither of them", {"kind": kind, "answer": answer})
