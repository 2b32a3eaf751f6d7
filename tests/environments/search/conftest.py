"""A small world made by the tests: realms with neighbours, allies, capitals, beasts, crops and rivers."""

import random
from collections import defaultdict

import pytest

from environments.search.corpus import Corpus, Document, Entity, Fact, Relation, save
from environments.search.environment import Search
from tests.chat_server import chat_server  # noqa: F401 - a fixture

RELATIONS = [
    Relation("borders", "{subject} has a border with {object}", "link", False),
    Relation("allied", "{subject} is allied with {object}", "link", False),
    Relation("capital", "the capital of {subject} is {object}", "attribute", False),
    Relation("beast", "the beast on the shield of {subject} is {object}", "attribute", True),
    Relation("crop", "the fields of {subject} bear {object}", "attribute", True),
    Relation("river", "the river {object} runs through {subject}", "attribute", True),
]
BEASTS = ("lion", "wolf", "heron", "boar", "stag", "otter", "falcon", "bear", "lynx", "ibex")
CROPS = ("rye", "flax", "hops", "millet", "saffron", "barley", "madder", "lentils")
SYLLABLES = ("bar", "dol", "fen", "gor", "hal", "kel", "mor", "nis", "pel", "ras", "tur", "vel", "zan")


class World:
    """Facts by subject, which become one document an entity with a line a fact."""

    def __init__(self, seed: int, realms: int = 60):
        rng = random.Random(seed)
        names = set()
        while len(names) < 2 * realms + 12:
            names.add("".join(rng.choices(SYLLABLES, k=3)).capitalize())
        names = sorted(names)
        rng.shuffle(names)
        self.entities: dict[str, Entity] = {}
        self.facts: dict[str, list[tuple[str, str]]] = defaultdict(list)
        lands = [self.add("realm", name) for name in names[:realms]]
        cities = [self.add("city", name) for name in names[realms : 2 * realms]]
        rivers = [self.add("river", name) for name in names[2 * realms :]]
        beasts = [self.add("beast", name) for name in BEASTS]
        crops = [self.add("crop", name) for name in CROPS]
        for land, city in zip(lands, cities, strict=True):
            self.facts[land].append(("capital", city))
            self.facts[land] += [("beast", beast) for beast in rng.sample(beasts, 2)]
            self.facts[land] += [("crop", crop) for crop in rng.sample(crops, 2)]
            self.facts[land] += [("river", rng.choice(rivers))]
            others = [other for other in lands if other != land]
            self.facts[land] += [("allied", other) for other in rng.sample(others, 2)]
            for other in rng.sample(others, 1):
                self.border(land, other)

    def add(self, kind: str, name: str) -> str:
        aliases = (f"Kingdom of {name}",) if kind == "realm" else ()
        hints = (f"{name}ish",) if kind == "realm" else ()
        entity = Entity(f"{kind}/{name.lower()}", kind, name, aliases, hints)
        self.entities[entity.id] = entity
        return entity.id

    def border(self, one: str, other: str) -> None:
        for subject, object_ in ((one, other), (other, one)):
            if ("borders", object_) not in self.facts[subject]:
                self.facts[subject].append(("borders", object_))

    def corpus(self) -> Corpus:
        statements = {relation.name: relation.statement for relation in RELATIONS}
        documents, facts = [], []
        for entity in self.entities.values():
            lines = [f"This article is about the {entity.kind} {entity.name}."]
            for relation, object_ in self.facts[entity.id]:
                lines.append(
                    statements[relation].format(subject=entity.name, object=self.entities[object_].name) + "."
                )
                facts.append(Fact(relation, entity.id, object_, entity.name.lower(), len(lines)))
            if self.facts[entity.id]:
                documents.append(Document(entity.name.lower(), entity.name, "\n".join(lines), "realms"))
        sources = [{"name": "realms", "version": "1", "licence": "CC0-1.0"}]
        return Corpus("realms", RELATIONS, documents, list(self.entities.values()), facts, sources)


@pytest.fixture(scope="session")
def world():
    """A fresh copy of the world: tests may add to it."""
    return lambda seed=7, realms=60: World(seed, realms)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("realms")
    save(World(7).corpus(), path)
    return path


@pytest.fixture(scope="session")
def search(folder):
    return Search(folder)
