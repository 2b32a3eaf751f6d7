"""The world of the search tasks: documents, entities, and facts with the line that states each.

A corpus is a folder of plain files, made by ``data_pipelines.search_tasks`` or by hand:

- ``corpus.json``: ``{"name", "sources": [{"name", "version", "licence"}], "relations": {name: {"statement",
  "role", "clue"}}}``. A statement is a sentence with ``{subject}`` and ``{object}``.
- ``documents.jsonl``: ``{"id", "title", "text", "source"}``, text in lines.
- ``entities.jsonl``: ``{"id", "kind", "name", "aliases", "hints"}``. ``kind`` is the noun that questions use;
  a hint is a word that would give the entity away (an adjective of a country).
- ``facts.jsonl``: ``{"relation", "subject", "object", "document", "line"}``, ids of the above, lines from 1.

What the facts say is complete: a question's answer is unique in this corpus, not in the world.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from pipeline.errors import UserError

FILES = ("corpus.json", "documents.jsonl", "entities.jsonl", "facts.jsonl")


@dataclass(frozen=True)
class Document:
    id: str
    title: str
    text: str
    source: str

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n")


@dataclass(frozen=True)
class Entity:
    id: str
    kind: str
    name: str
    aliases: tuple[str, ...] = ()  # other names that are right as an answer
    hints: tuple[str, ...] = ()  # words that give it away and are no answer


@dataclass(frozen=True)
class Relation:
    """``role``: "link" joins entities that walks go through, "attribute" leads to something that ends one."""

    name: str
    statement: str
    role: Literal["link", "attribute"]
    clue: bool  # whether its object may be named in a question


@dataclass(frozen=True)
class Fact:
    relation: str
    subject: str
    object: str
    document: str
    line: int


class Corpus:
    """Raises ``UserError`` where the parts do not fit together. ``digest`` names the content."""

    def __init__(
        self,
        name: str,
        relations: list[Relation],
        documents: list[Document],
        entities: list[Entity],
        facts: list[Fact],
        sources: list[dict[str, str]] | None = None,
    ):
        self.name, self.sources = name, sources or []
        self.relations = _by(relations, "name", name)
        self.documents = _by(documents, "id", name)
        self.entities = _by(entities, "id", name)
        self.facts = facts
        self._check()
        self.digest = self._digest()

    def _check(self) -> None:
        for relation in self.relations.values():
            if relation.role not in ("link", "attribute"):
                raise self._error(
                    f"relation {relation.name} has the role {relation.role!r}, not link or attribute"
                )
            try:
                relation.statement.format(subject="", object="")
            except (KeyError, IndexError, ValueError):
                raise self._error(
                    f"the statement of {relation.name} has other fields than {{subject}} and {{object}}"
                ) from None
        lines = {document.id: len(document.lines) for document in self.documents.values()}
        for fact in self.facts:
            where = f"the fact {fact.relation}({fact.subject}, {fact.object})"
            if fact.relation not in self.relations:
                raise self._error(f"{where} has an unknown relation")
            for entity in (fact.subject, fact.object):
                if entity not in self.entities:
                    raise self._error(f"{where} names the unknown entity {entity}")
            if not 1 <= fact.line <= lines.get(fact.document, 0):
                raise self._error(
                    f"{where} points to line {fact.line} of {fact.document}, which is not there"
                )

    def _error(self, what: str) -> UserError:
        return UserError(f"search corpus {self.name}: {what}: make the corpus again")

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for part in (self.relations, self.documents, self.entities):
            digest.update(repr(sorted(part.items())).encode())
        digest.update(repr(self.facts).encode())
        return digest.hexdigest()[:16]


class Graph:
    """The facts as neighbours: ``forward[relation][subject]`` and ``backward[relation][object]``."""

    def __init__(self, corpus: Corpus):
        self.entities, self.relations = corpus.entities, corpus.relations
        self.forward, self.backward = _neighbours(corpus.facts)
        self.evidence = {(fact.relation, fact.subject, fact.object): fact for fact in corpus.facts}
        self.of_kind: dict[str, frozenset[str]] = _kinds(corpus.entities)
        self._kinds = set(self.of_kind.values())
        self._images: dict[tuple, frozenset[str]] = {}
        self.around: dict[str, list[tuple[str, bool, str]]] = defaultdict(list)  # entity -> steps from it
        for relation, subject, object_ in self.evidence:
            self.around[subject].append((relation, True, object_))
            self.around[object_].append((relation, False, subject))

    def reached(self, relation: str, entity: str, forward: bool) -> frozenset[str]:
        """The objects of ``entity`` in ``relation``; with ``forward`` false, the subjects whose it is."""
        return (self.forward if forward else self.backward)[relation].get(entity, frozenset())

    def image(self, relation: str, entities: frozenset[str], forward: bool, kind: str) -> frozenset[str]:
        """What of a kind any of ``entities`` reaches. That of a whole kind is computed once."""
        key = (relation, entities, forward, kind)
        if key in self._images:
            return self._images[key]
        found = frozenset().union(*(self.reached(relation, entity, forward) for entity in entities))
        found &= self.of_kind[kind]
        if entities in self._kinds:
            self._images[key] = found
        return found


def _neighbours(facts: list[Fact]):
    forward, backward = defaultdict(lambda: defaultdict(set)), defaultdict(lambda: defaultdict(set))
    for fact in facts:
        forward[fact.relation][fact.subject].add(fact.object)
        backward[fact.relation][fact.object].add(fact.subject)
    return [
        defaultdict(dict, {r: {e: frozenset(found) for e, found in by.items()} for r, by in table.items()})
        for table in (forward, backward)
    ]


def _kinds(entities: dict[str, Entity]) -> dict[str, frozenset[str]]:
    kinds = defaultdict(set)
    for entity in entities.values():
        kinds[entity.kind].add(entity.id)
    return {kind: frozenset(found) for kind, found in kinds.items()}


def _by(parts: list, key: str, name: str) -> dict[str, Any]:
    found = {getattr(part, key): part for part in parts}
    if len(found) < len(parts):
        raise UserError(f"search corpus {name}: two {type(parts[0]).__name__} entries have one {key}")
    return found


def load(folder: Path) -> Corpus:
    """The corpus of a folder. Raises ``UserError`` with the file and line that is wrong."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"{folder} is no search corpus, it lacks {', '.join(missing)}: make it with stage search_tasks"
        )
    try:
        about = json.loads((folder / "corpus.json").read_text())
        relations = [Relation(name=name, **entry) for name, entry in about["relations"].items()]
        name, sources = about["name"], about["sources"]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{folder / 'corpus.json'} is not the description of a search corpus ({error})"
        ) from None
    return Corpus(
        name,
        relations,
        list(_rows(folder / "documents.jsonl", Document)),
        list(_rows(folder / "entities.jsonl", Entity)),
        list(_rows(folder / "facts.jsonl", Fact)),
        sources,
    )


def save(corpus: Corpus, folder: Path) -> None:
    """Write the folder that ``load`` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    relations = {
        relation.name: {"statement": relation.statement, "role": relation.role, "clue": relation.clue}
        for relation in corpus.relations.values()
    }
    about = {"name": corpus.name, "sources": corpus.sources, "relations": relations}
    (folder / "corpus.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    for name, parts in (
        ("documents", corpus.documents.values()),
        ("entities", corpus.entities.values()),
        ("facts", corpus.facts),
    ):
        with open(folder / f"{name}.jsonl", "w") as file:
            for part in parts:
                file.write(json.dumps(vars(part), ensure_ascii=False) + "\n")


def _rows(file: Path, kind: type) -> Iterator:
    types = {field.name: field.type for field in fields(kind)}
    with open(file, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                values = json.loads(line)
                row = kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
                if any(not isinstance(getattr(row, key), _plain(type_)) for key, type_ in types.items()):
                    raise TypeError("a value has another type")
            except (ValueError, TypeError, AttributeError) as error:
                raise UserError(f"{file}, line {number}, is no {kind.__name__.lower()} ({error})") from None
            yield row


def _plain(type_: Any) -> type:
    return type_ if type_ in (str, int) else tuple
