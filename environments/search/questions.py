"""Questions as statements about unnamed entities, drawn by walks through the graph (arXiv 2602.15763, 4.2.3).

A question has variables, 0 being asked for, and statements whose terms are variables or named entities. The
walk begins at an entity that several shared facts describe, and goes two to four steps to the answer; nothing
on it is named. A question is kept when trying every assignment of different entities leaves one answer, and
when without any one of the described entities it has several: then no step of the walk can be skipped.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import gcd

from environments.search.corpus import Graph
from environments.search.split import is_heldout_entity

CLUE_HOLDERS = range(
    2, 26
)  # a clue is true of at least two entities, of no more than a tenth of a small corpus
MOST_REACHED = 15  # in one step of a walk
MOST_SHARING = 8  # entities that have one thing in common
FEW_SHARED = 3  # such things of one relation, where a walk goes through one
CLUES = (2, 2, 3)  # that describe where a walk begins, at least
MOST_CLUES = 3
TRIED_CLUES = 24

NOTHING: frozenset[str] = frozenset()
Term = int | str  # a variable, or the id of a named entity
Step = tuple[str, bool, str]  # relation, whether it starts at its subject, the entity it reaches


@dataclass(frozen=True)
class Statement:
    relation: str
    subject: Term
    object: Term


@dataclass(frozen=True)
class Question:
    kinds: tuple[str, ...]  # of each variable
    statements: tuple[Statement, ...]

    def leaves(self) -> list[int]:
        """The variables, the answer left out, that only one other variable is tied to."""
        pairs = [(s.subject, s.object) for s in self.statements]
        tied = [term for pair in pairs if all(isinstance(t, int) for t in pair) for term in pair]
        return [variable for variable in range(1, len(self.kinds)) if tied.count(variable) == 1]

    def to_record(self) -> dict:
        return {
            "kinds": list(self.kinds),
            "statements": [[s.relation, s.subject, s.object] for s in self.statements],
        }

    @classmethod
    def from_record(cls, record: dict) -> "Question":
        return cls(tuple(record["kinds"]), tuple(Statement(*terms) for terms in record["statements"]))


def solve(graph: Graph, question: Question, limit: int | None = None, without: int | None = None) -> set[str]:
    """All entities that variable 0 can be, by trying every assignment of different entities to the variables.

    ``limit`` stops the search once so many answers are known. ``without`` leaves a variable out with all
    that is said about it.
    """
    answers: set[str] = set()
    order = [variable for variable in reversed(range(len(question.kinds))) if variable != without]
    domains, ties = _described(graph, question, order)

    def extend(position: int, bound: dict[int, str]) -> None:
        variable = order[position]
        domain = domains[variable]
        for other, table in ties[variable]:
            domain = domain & table.get(bound[other], NOTHING)
        for entity in domain:
            if entity in bound.values():
                continue
            if variable == 0:
                answers.add(entity)
            else:
                extend(position + 1, {**bound, variable: entity})
            if limit is not None and len(answers) >= limit:
                return

    extend(0, {})
    return answers


def _described(graph: Graph, question: Question, order: list[int]) -> tuple[dict, dict]:
    """What each variable can be by its clues alone, and its ties to the variables before it in ``order``.

    A tie is the other variable and the table from its entities to those that this one can be.
    """
    domains = {variable: graph.of_kind.get(question.kinds[variable], NOTHING) for variable in order}
    ties: dict[int, list] = {variable: [] for variable in order}
    for relation, subject, object_ in ((s.relation, s.subject, s.object) for s in question.statements):
        forward, backward = graph.forward[relation], graph.backward[relation]
        if isinstance(subject, str):
            if object_ in domains:
                domains[object_] &= forward.get(subject, NOTHING)
        elif isinstance(object_, str):
            if subject in domains:
                domains[subject] &= backward.get(object_, NOTHING)
        elif subject in domains and object_ in domains:
            if order.index(subject) < order.index(object_):
                ties[object_].append((subject, forward))
            else:
                ties[subject].append((object_, backward))
    return domains, ties


def is_unique(graph: Graph, question: Question) -> bool:
    return len(solve(graph, question, limit=2)) == 1


def needs_every_step(graph: Graph, question: Question) -> bool:
    """Whether leaving out any described entity at the end of the walk leaves several answers."""
    return all(len(solve(graph, question, limit=2, without=leaf)) == 2 for leaf in question.leaves())


Drawn = tuple[Question, list[str]]  # and the entity of each variable
Domains = dict[int | None, frozenset[str]]


class Walks:
    """Draws questions; everything that does not depend on the draw is computed once."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self._names = {entity.id: entity.name.casefold() for entity in graph.entities.values()}
        self.heldout = {entity: is_heldout_entity(entity) for entity in graph.entities}
        self.clues = {
            entity: [s for s in steps if self._is_clue(s)] for entity, steps in graph.around.items()
        }
        self.steps = {
            "link": {entity: self._grouped(entity, "link", MOST_REACHED) for entity in graph.around},
            "attribute": {entity: self._grouped(entity, "attribute", 1) for entity in graph.around},
            "shared": {entity: self._shared(entity) for entity in graph.around},
            "sharing": {entity: self._sharing(entity) for entity in graph.around},
        }
        self.anchors = [entity for entity, clues in self.clues.items() if len(clues) >= min(CLUES)]
        self.trained_anchors = [entity for entity in self.anchors if not self.heldout[entity]]

    def can(self, role: str) -> bool:
        """Whether any entity has a step of this role."""
        return any(self.steps[role].values())

    def _is_clue(self, step: Step) -> bool:
        relation, forward, named = step
        holders = self.graph.reached(relation, named, not forward)
        kind = self.graph.relations[relation]
        return kind.clue and (forward or kind.role == "link") and len(holders) in CLUE_HOLDERS

    def _grouped(self, entity: str, role: str, most: int) -> list[list[Step]]:
        """The steps from an entity, by relation and direction. Attributes are never walked backwards."""
        groups: dict[tuple[str, bool], list[Step]] = {}
        for step in self.graph.around[entity]:
            if self.graph.relations[step[0]].role == role and (role == "link" or step[1]):
                groups.setdefault(step[:2], []).append(step)
        return [group for group in groups.values() if len(group) <= most]

    def _shared(self, entity: str) -> list[list[Step]]:
        """Steps to something that a few other entities have too."""
        groups: dict[str, list[Step]] = {}
        for relation, forward, thing in self.graph.around[entity]:
            if forward and self.graph.relations[relation].role == "attribute":
                if 2 <= len(self.graph.reached(relation, thing, False)) <= MOST_SHARING:
                    groups.setdefault(relation, []).append((relation, forward, thing))
        return [group for group in groups.values() if len(group) <= FEW_SHARED]

    def _sharing(self, thing: str) -> list[list[Step]]:
        """Steps from such a thing to those that have it."""
        groups: dict[str, list[Step]] = {}
        for relation, forward, entity in self.graph.around[thing]:
            if not forward and self.graph.relations[relation].role == "attribute":
                groups.setdefault(relation, []).append((relation, forward, entity))
        return [group for group in groups.values() if len(group) <= MOST_SHARING]

    def chain(self, roles: tuple[str, ...], heldout: bool, rng: random.Random) -> Drawn | None:
        """A walk of these steps from a described entity to the answer; None where this draw gives none.

        In training no entity of the walk is held out; otherwise the answer is.
        """
        anchors = self.anchors if heldout else self.trained_anchors
        if not anchors:
            return None
        path, links = [rng.choice(anchors)], []
        for left in reversed(range(len(roles))):
            step = self._step(path, roles[-1 - left], heldout, last=left == 0, rng=rng)
            if step is None:
                return None
            links.append(Statement(step[0], *((left + 1, left) if step[1] else (left, left + 1))))
            path.append(step[2])
        return self._finish(path[::-1], links, rng)

    def meeting(self, heldout: bool, rng: random.Random) -> Drawn | None:
        """An answer with links to two described entities."""
        ends = (
            [entity for entity in self.anchors if self.heldout[entity]] if heldout else self.trained_anchors
        )
        if not ends:
            return None
        path, links = [rng.choice(ends)], []
        for variable in (1, 2):
            step = self._step([*path[1:], path[0]], "link", heldout, last=False, rng=rng)
            if step is None:
                return None
            links.append(Statement(step[0], *((0, variable) if step[1] else (variable, 0))))
            path.append(step[2])
        return self._finish(path, links[::-1], rng)

    def _step(self, path: list[str], role: str, heldout: bool, last: bool, rng: random.Random) -> Step | None:
        """A random relation first, so that the one with most neighbours does not take all."""
        groups = self.steps[role][path[-1]]
        for group in rng.sample(groups, len(groups)):
            allowed = [
                step
                for step in group
                if step[2] not in path and (self.heldout[step[2]] == heldout if last or not heldout else True)
            ]
            if allowed:
                return rng.choice(allowed)
        return None

    def _finish(self, path: list[str], links: list[Statement], rng: random.Random) -> Drawn | None:
        """Describe the entities, the farthest first, until the answer is unique; None where it stays
        ambiguous, or where a step can be skipped.
        """
        kinds = tuple(self.graph.entities[entity].kind for entity in path)
        leaves = Question(kinds, tuple(links)).leaves()
        described: list[Statement] = []
        # What each variable can be as far as the variables beyond it tell, and the same without one leaf.
        # Entities may coincide here, so these are bounds; the check at the end is exact.
        tables: dict[int | None, Domains] = {None: {}, **{leaf: {} for leaf in leaves}}
        for variable in reversed(range(len(path))):
            domains = {
                leaf: self._reached(kinds[variable], links, variable, table)
                for leaf, table in tables.items()
                if leaf != variable
            }
            described += self._describe(variable, path, domains, leaves, rng)
            for leaf, domain in domains.items():
                tables[leaf][variable] = domain
        if len(tables[None][0]) > len(path):  # more than what differing entities can take away
            return None
        question = Question(kinds, tuple(described + links))
        if is_unique(self.graph, question) and needs_every_step(self.graph, question):
            return question, path
        return None

    def _reached(self, kind: str, links: list[Statement], variable: int, table: Domains) -> frozenset[str]:
        domain = None
        for link in links:
            far = link.subject if link.object == variable else link.object
            if variable in (link.subject, link.object) and far in table:
                found = self.graph.image(link.relation, table[far], link.object == variable, kind)
                domain = found if domain is None else domain & found
        return self.graph.of_kind[kind] if domain is None else domain

    def _describe(
        self, variable: int, path: list[str], domains: Domains, leaves: list[int], rng: random.Random
    ) -> list[Statement]:
        """Clues: several about a leaf, elsewhere what the answer needs.

        ``domains`` are narrowed. A clue that makes a leaf unnecessary is not taken.
        """
        least = rng.choice(CLUES) if variable in leaves else 0
        chosen, hidden = [], {self._names[entity] for entity in path}
        for relation, forward, named in islice(_in_some_order(self.clues[path[variable]], rng), TRIED_CLUES):
            if len(domains[None]) == 1 and len(chosen) >= least or len(chosen) == MOST_CLUES:
                break
            holders = self.graph.reached(relation, named, not forward)
            if domains[None] <= holders or self._names[named] in hidden:
                continue
            left = {leaf: domain & holders for leaf, domain in domains.items()}
            if variable in leaves or all(len(left[leaf]) > 1 for leaf in leaves):
                chosen.append(Statement(relation, *((variable, named) if forward else (named, variable))))
                domains.update(left)
        return chosen


def _in_some_order(items: list, rng: random.Random) -> Iterator:
    """All items once, from a random one on in random strides: cheaper than a sample."""
    count = len(items)
    if count:
        place, stride = int(rng.random() * count), 1 + int(rng.random() * (count - 1))
        while gcd(stride, count) > 1:
            stride += 1
        for step in range(count):
            yield items[(place + step * stride) % count]
