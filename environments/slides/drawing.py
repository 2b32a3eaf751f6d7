"""What a slide shall say, drawn from lists of words, by family."""

import random
from collections.abc import Callable

Piece = dict[str, str]  # the element and its text

PLACES = (
    "Harbour", "Glacier", "Orchard", "Library", "Railway", "Reservoir", "Museum", "Greenhouse", "Observatory",
    "Lighthouse", "Vineyard", "Workshop", "Airfield", "Quarry", "Market", "Hospital", "Theatre", "Archive",
    "Bakery", "Laboratory", "Shipyard", "Stadium", "Warehouse", "Nursery",
)  # fmt: skip
ASPECTS = (
    "survey", "budget", "timetable", "safety report", "renewal plan", "visitor count", "energy audit",
    "repairs", "staffing", "water balance", "opening", "inventory",
)  # fmt: skip
SEASONS = ("spring", "summer", "autumn", "winter")
VERBS = (
    "Check",
    "Replace",
    "Measure",
    "Clean",
    "Record",
    "Compare",
    "Repair",
    "Photograph",
    "Label",
    "Order",
)
THINGS = (
    "the northern pumps", "all entrance doors", "the storage shelves", "the warning lights",
    "the roof windows", "the spare batteries", "the delivery lists", "the cooling pipes",
    "the visitor tickets", "the old cables",
)  # fmt: skip
TIMES = (
    "before the first frost",
    "within two weeks",
    "on every Monday",
    "after the inspection",
    "by end of June",
)
ITEMS = ("Pumps", "Doors", "Lamps", "Cables", "Filters", "Shelves", "Meters", "Valves")
MEASURES = ("Planned", "Ordered", "Delivered", "Installed", "Tested", "Returned")
STATES = ("Today", "Problems", "Strengths", "Costs", "Next year", "Risks", "Goals", "Results")


def _title(rng: random.Random) -> Piece:
    return {"tag": "h1", "text": f"{rng.choice(PLACES)} {rng.choice(ASPECTS)}"}


def _tasks(rng: random.Random, count: int) -> list[str]:
    things = rng.sample(THINGS, count)
    return [f"{rng.choice(VERBS)} {thing} {rng.choice(TIMES)}" for thing in things]


def title(rng: random.Random) -> list[Piece]:
    subtitle = f"What we learnt in {rng.choice(SEASONS)} {rng.randint(1990, 2030)}"
    return [_title(rng), {"tag": "p", "text": f"{subtitle}, {rng.choice(STATES).lower()} first"}]


def bullets(rng: random.Random) -> list[Piece]:
    return [_title(rng), *({"tag": "li", "text": text} for text in _tasks(rng, rng.randint(3, 5)))]


def table(rng: random.Random) -> list[Piece]:
    heads = ["Equipment", *rng.sample(MEASURES, rng.randint(2, 3))]
    cells = []
    for item in rng.sample(ITEMS, rng.randint(3, 4)):
        cells += [item, *(str(rng.randint(100, 9999)) for _ in heads[1:])]
    return [
        _title(rng),
        *({"tag": "th", "text": text} for text in heads),
        *({"tag": "td", "text": text} for text in cells),
    ]


def columns(rng: random.Random) -> list[Piece]:
    one, two = rng.sample(STATES, 2)
    first, second, third, fourth = _tasks(rng, 4)
    return [
        _title(rng),
        {"tag": "h2", "text": one}, {"tag": "p", "text": f"{first}. {second}."},
        {"tag": "h2", "text": two}, {"tag": "p", "text": f"{third}. {fourth}."},
    ]  # fmt: skip


FAMILIES: dict[str, Callable[[random.Random], list[Piece]]] = {
    "title": title, "bullets": bullets, "table": table, "columns": columns,
}  # fmt: skip
