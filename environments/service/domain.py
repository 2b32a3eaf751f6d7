"""What a service desk is: tables, tools that read and change them, a policy, and the cases drawn for it."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Database = dict[str, Any]  # table -> id -> row; JSON throughout

NAMES = (
    "Ana",
    "Bela",
    "Chidi",
    "Dora",
    "Emil",
    "Farah",
    "Goran",
    "Hiro",
    "Ines",
    "Jonas",
    "Kofi",
    "Lena",
    "Mira",
    "Nils",
    "Olga",
    "Pablo",
    "Rosa",
    "Sven",
    "Tara",
    "Udo",
)
SURNAMES = (
    "Adler",
    "Brandt",
    "Castro",
    "Dubois",
    "Eriksen",
    "Fischer",
    "Garcia",
    "Hansen",
    "Ito",
    "Jansen",
    "Kaya",
    "Lopez",
    "Moreau",
    "Novak",
    "Okafor",
    "Petrov",
    "Rossi",
    "Silva",
    "Tanaka",
    "Weber",
)


class ToolError(Exception):
    """A call that the tool refuses; the sentence goes back as its result and nothing has changed."""


@dataclass(frozen=True)
class Tool:
    """``run(database, **arguments)`` returns what the agent sees. Arguments are all required text."""

    name: str
    description: str
    arguments: dict[str, str]  # name -> description
    run: Callable[..., Any]
    changes: bool = False
    private: bool = True  # shows or changes what belongs to a customer, who has to be identified first

    def schema(self) -> dict:
        properties = {
            name: {"type": "string", "description": description}
            for name, description in self.arguments.items()
        }
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class Domain:
    name: str
    policy: str  # with {today}
    tools: dict[str, Tool]
    schemas: tuple[dict, ...]
    families: dict[str, Callable[[random.Random], "Case"]]


@dataclass(frozen=True)
class Wish:
    """One wish of the user. Where a rule forbids it, ``calls`` is empty and ``rule`` is its number."""

    opening: str
    calls: list[list] = field(default_factory=list)  # name and arguments of the changes that fulfil it
    confirms: list[str] = field(default_factory=list)  # a question that names these is answered with yes
    say: list[str] = field(default_factory=list)  # has to be told while the wish is open
    reads: list[list] = field(default_factory=list)  # name and arguments of what has to be looked at before
    rule: int = 0
    insists: str = ""  # after a refusal


class Plan:
    """What the oracle does: its thoughts and messages, in order, and what it knows before each turn."""

    def __init__(self):
        self.steps: list[dict] = []
        self._known: list[str] = []
        self._new_turn = True

    def know(self, fact: str) -> None:
        self._known.append(fact)

    def say(self, thought: str, text: str) -> None:
        self._add(thought, say=text)
        self._new_turn = True

    def call(self, thought: str, name: str, **arguments: str) -> None:
        self._add(thought, call=[name, arguments])

    def _add(self, thought: str, **what) -> None:
        recap = "; ".join(self._known) if self._new_turn else ""
        self.steps.append({"thought": thought, "recap": recap, **what})
        self._new_turn = False


@dataclass
class Case:
    """Everything of one dialogue that the environment knows."""

    database: Database
    today: str
    facts: dict[str, str]  # topic -> the user's words when asked for it
    wishes: list[Wish]
    plan: Plan
    stranger: bool = False  # the user is not the customer whose email they give

    def truth(self, domain: str) -> dict[str, Any]:
        return {
            "domain": domain,
            "database": self.database,
            "facts": self.facts,
            "wishes": [{**vars(wish)} for wish in self.wishes],
            "plan": self.plan.steps,
            "stranger": self.stranger,
        }


IDENTITY = (
    "1. Before you look at anything that belongs to a customer, ask for the email and the postcode, call "
    "find_customer and compare. If they do not agree, refuse. Never tell the user what the postcode "
    "should be. "
    "Look at what a request is about before you decide on it."
)
CONFIRMATION = (
    "2. Before every change, name all the values you are going to pass to the tool and ask the user to "
    "confirm. "
    "Go on only after a yes."
)
REFUSAL = (
    "Do all that the user asks for and these rules allow. If a rule forbids it, say that you cannot do it "
    "and name the one rule that forbids it, as in 'I cannot do that (rule 4)'. Amounts have two decimals, as "
    "in 12.50. Keep it short: no lists of amounts that were not asked for."
)


def find_customer(database: Database, email: str) -> dict:
    for key, row in database["customers"].items():
        if row["email"] == email.strip().lower():
            return {"customer": key, **row}
    raise ToolError("no customer has that email")


FIND_CUSTOMER = Tool(
    "find_customer",
    "The customer with that email.",
    {"email": "the whole email"},
    find_customer,
    private=False,
)


def row_of(database: Database, table: str, key: str) -> dict:
    row = database[table].get(key)
    if row is None:
        raise ToolError(f"there is no {key} among the {table}")
    return row


def make_customers(rng: random.Random, **more: Callable[[random.Random], Any]) -> tuple[dict, str, dict]:
    """Three customers by id, then id and row of the one who writes. ``more`` are further columns."""
    rows = {}
    for name, surname in zip(rng.sample(NAMES, 3), rng.sample(SURNAMES, 3), strict=True):
        row = {
            "name": f"{name} {surname}",
            "email": f"{name}.{surname}{rng.randint(1, 99)}@mail.example".lower(),
            "postcode": str(rng.randint(10_000, 99_999)),
        }
        rows[f"C{rng.randint(1000, 9999)}{len(rows)}"] = row | {key: make(rng) for key, make in more.items()}
    key = rng.choice(list(rows))
    return rows, key, rows[key]


def identity_facts(row: dict) -> dict[str, str]:
    return {"email": f"My email is {row['email']}.", "postcode": f"My postcode is {row['postcode']}."}


def identify(plan: Plan, key: str, row: dict, agrees: bool = True) -> None:
    """The oracle's way into every case. ``agrees``: the user will give the right postcode."""
    plan.say(
        "rule 1: identify the customer first",
        "I can look into that. What are your email and your postcode, please?",
    )
    plan.call("look the customer up", "find_customer", email=row["email"])
    if agrees:
        plan.know(f"customer {key}, {row['name']}, email and postcode agree")


def amount(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


def cents(price: str) -> int:
    return int(price.replace(".", ""))


def refuse(plan: Plan, rule: int, why: str) -> None:
    plan.say(f"{why}: rule {rule} forbids it", f"I am sorry, I cannot do that (rule {rule}).")
    plan.say(
        "a rule has no exceptions", f"I understand, but I cannot make an exception: rule {rule} forbids it."
    )
