"""Physics: a situation, given values, one or two formulas. All constants stand in the question."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from environments.science.problem import ScienceProblem
from environments.science.quantities import rounded


@dataclass(frozen=True)
class Situation:
    """``text`` and ``formula`` name the variables; each is drawn as ``low`` to ``high`` times ``step``."""

    text: str
    variables: dict[str, tuple[int, int, float]]
    formula: str
    unit: str
    compute: Callable[..., float]
    difficulty: int = 3


G = "Take g = 9.81 m/s^2."
R = "Take R = 8.314 J/(mol K)."
LIGHT = "Take c = 2.998*10^8 m/s and h = 6.626*10^-34 J s."

SITUATIONS = {
    "mechanics": (
        Situation(
            "A car of {m} kg speeds up from {u} m/s to {v} m/s. How much work in kJ does that "
            "take, without losses?",
            {"m": (80, 220, 10), "u": (2, 15, 1), "v": (18, 45, 1)},
            "W = m(v^2 - u^2)/2",
            "kJ",
            lambda m, u, v: m * (v * v - u * u) / 2000,
        ),
        Situation(
            "A stone falls {h} m from rest, without air. " + G + " How fast is it at the ground, in m/s?",
            {"h": (5, 900, 0.5)},
            "v = sqrt(2gh)",
            "m/s",
            lambda h: math.sqrt(2 * 9.81 * h),
        ),
        Situation(
            "A block of {m} kg slides on level ground with a coefficient of friction of {k} from "
            "{v} m/s until it stops. " + G + " How far does it slide, in m?",
            {"m": (2, 90, 1), "k": (10, 80, 0.01), "v": (20, 300, 0.1)},
            "s = v^2/(2kg)",
            "m",
            lambda m, k, v: v * v / (2 * k * 9.81),
        ),
        Situation(
            "A pendulum is {l} m long. " + G + " What is the period of small swings, in s?",
            {"l": (10, 900, 0.01)},
            "T = 2 pi sqrt(l/g)",
            "s",
            lambda l: 2 * math.pi * math.sqrt(l / 9.81),
        ),
        Situation(
            "A wagon of {m} kg at {v} m/s runs into a resting wagon of {n} kg and stays coupled "
            "to it. How much energy in kJ is lost?",
            {"m": (10, 90, 100), "v": (10, 90, 0.1), "n": (10, 90, 100)},
            "E = m n v^2/(2(m + n))",
            "kJ",
            lambda m, v, n: m * n * v * v / (2 * (m + n)) / 1000,
            4,
        ),
        Situation(
            "A motor lifts {m} kg by {h} m in {t} s at an efficiency of {e} "
            "%. " + G + " What power in W does it take in?",
            {"m": (20, 900, 1), "h": (20, 400, 0.1), "t": (4, 90, 1), "e": (40, 95, 1)},
            "P = mgh/(t e)",
            "W",
            lambda m, h, t, e: m * 9.81 * h / t / (e / 100),
            4,
        ),
    ),
    "heat": (
        Situation(
            "How much energy in kJ warms {m} g of water from {a} K to {b} K? The specific heat "
            "is 4.18 J/(g K).",
            {"m": (50, 900, 1), "a": (275, 300, 1), "b": (310, 370, 1)},
            "Q = mc(b - a)",
            "kJ",
            lambda m, a, b: m * 4.18 * (b - a) / 1000,
        ),
        Situation(
            "{n} mol of an ideal gas fill {v} L at {t} K. " + R + " What is the pressure in kPa?",
            {"n": (10, 900, 0.01), "v": (5, 90, 1), "t": (250, 600, 1)},
            "p = nRT/V",
            "kPa",
            lambda n, v, t: n * 8.314 * t / v,
        ),
        Situation(
            "A gas at {p} kPa and {a} K fills {v} L. It is brought to {q} kPa and {b} K. What is "
            "its volume in L then?",
            {
                "p": (80, 400, 1),
                "a": (250, 350, 1),
                "v": (10, 300, 0.1),
                "q": (80, 400, 1),
                "b": (360, 700, 1),
            },
            "V2 = p V T2/(q T1)",
            "L",
            lambda p, a, v, q, b: p * v * b / (q * a),
            4,
        ),
        Situation(
            "{m} g of metal at {a} K are put into {n} g of water at {b} K; both end at {e} K. "
            "The specific heat of water is 4.18 J/(g K). What is that of the metal in J/(g K), "
            "without losses?",
            {
                "m": (50, 400, 1),
                "a": (360, 470, 1),
                "n": (100, 500, 1),
                "b": (280, 290, 1),
                "e": (292, 305, 1),
            },
            "c = n 4.18 (e - b)/(m(a - e))",
            "J/(g K)",
            lambda m, a, n, b, e: n * 4.18 * (e - b) / (m * (a - e)),
            5,
        ),
    ),
    "electricity": (
        Situation(
            "Two resistors of {a} ohm and {b} ohm are in parallel, a third of {c} ohm in series "
            "with both. The voltage is {u} V. What is the total current in A?",
            {"a": (10, 300, 1), "b": (10, 300, 1), "c": (5, 200, 1), "u": (5, 230, 1)},
            "I = U/(ab/(a + b) + c)",
            "A",
            lambda a, b, c, u: u / (a * b / (a + b) + c),
            4,
        ),
        Situation(
            "A capacitor of {c} uF is charged to {u} V. How much energy in mJ does it hold?",
            {"c": (10, 900, 1), "u": (5, 90, 1)},
            "E = C U^2/2",
            "mJ",
            lambda c, u: c * u * u / 2000,
        ),
        Situation(
            "A wire of {l} m with a cross-section of {a} mm^2 has the resistivity {r}*10^-8 ohm "
            "m. What is its resistance in ohm?",
            {"l": (20, 900, 0.1), "a": (10, 90, 0.1), "r": (15, 99, 0.1)},
            "R = r l/A",
            "ohm",
            lambda l, a, r: r * 1e-8 * l / (a * 1e-6),
        ),
        Situation(
            "A heater for {u} V takes {p} W. What is its resistance in ohm?",
            {"u": (6, 400, 1), "p": (10, 300, 10)},
            "R = U^2/P",
            "ohm",
            lambda u, p: u * u / p,
        ),
    ),
    "waves": (
        Situation(
            "Light has a wavelength of {w} nm. " + LIGHT + " What is the energy of a photon in J?",
            {"w": (200, 1200, 1)},
            "E = hc/w",
            "J",
            lambda w: 6.626e-34 * 2.998e8 / (w * 1e-9),
        ),
        Situation(
            "A radio station sends at {f} MHz. Take c = 2.998*10^8 m/s. What is the wavelength in m?",
            {"f": (300, 3000, 0.1)},
            "w = c/f",
            "m",
            lambda f: 2.998e8 / (f * 1e6),
        ),
        Situation(
            "A laser of {p} mW has a wavelength of {w} "
            "nm. " + LIGHT + " How many photons does it emit in a second?",
            {"p": (10, 900, 0.1), "w": (300, 1100, 1)},
            "N = P w/(hc)",
            "",
            lambda p, w: p * 1e-3 * w * 1e-9 / (6.626e-34 * 2.998e8),
            4,
        ),
        Situation(
            "A train comes at {v} m/s and whistles at {f} Hz. Take 343 m/s for sound. Which "
            "frequency in Hz does a person at the track hear?",
            {"v": (10, 80, 1), "f": (200, 900, 1)},
            "f' = f/(1 - v/343)",
            "Hz",
            lambda v, f: f / (1 - v / 343),
        ),
    ),
    "optics": (
        Situation(
            "A thin lens has the focal length {f} cm; an object stands {g} cm before it. How far "
            "behind the lens is the image, in cm?",
            {"f": (20, 150, 0.1), "g": (16, 90, 1)},
            "b = 1/(1/f - 1/g)",
            "cm",
            lambda f, g: 1 / (1 / f - 1 / g),
        ),
        Situation(
            "Light passes a grating with {n} lines per mm; its wavelength is {w} nm. At which "
            "angle in degrees is the first maximum?",
            {"n": (100, 700, 1), "w": (400, 750, 1)},
            "sin(angle) = n w",
            "degrees",
            lambda n, w: math.degrees(math.asin(n * 1e3 * w * 1e-9)),
            4,
        ),
        Situation(
            "Light goes from air into glass of the refractive index {n} at {a} degrees from the "
            "normal. At which angle in degrees does it go on?",
            {"n": (130, 190, 0.01), "a": (10, 80, 1)},
            "sin(b) = sin(a)/n",
            "degrees",
            lambda n, a: math.degrees(math.asin(math.sin(math.radians(a)) / n)),
            4,
        ),
    ),
}


def physics(topic: str) -> Callable[[random.Random], ScienceProblem]:
    def draw(rng: random.Random) -> ScienceProblem:
        while True:
            situation = rng.choice(SITUATIONS[topic])
            values = {
                name: round(rng.randint(low, high) * step, 4)
                for name, (low, high, step) in situation.variables.items()
            }
            if "{g}" in situation.text and values["g"] <= values["f"]:
                continue  # a virtual image
            result = situation.compute(**values)
            shown = {name: f"{value:g}" for name, value in values.items()}
            given = ", ".join(f"{name} = {value}" for name, value in shown.items())
            steps = f"{situation.formula}; {given}; {rounded(result, 5)} {situation.unit}".strip()
            return ScienceProblem(
                situation.text.format(**shown), steps, result, situation.difficulty, unit=situation.unit
            )

    return draw


FAMILIES = {topic: physics(topic) for topic in SITUATIONS}
