"""Questions: one answer by trying all, a planted second answer is rejected, no step can be skipped."""

import itertools
import random

import pytest

from environments.search.corpus import Corpus, Graph
from environments.search.environment import CHAINS, Search
from environments.search.names import normal
from environments.search.questions import (
    Question,
    Statement,
    Walks,
    is_unique,
    needs_every_step,
    solve,
)
from environments.search.split import is_heldout_entity
from environments.search.wording import prompt
from pipeline.errors import UserError

FAMILIES = (*Search.families, *Search.evaluation_only)
SEEDS = 25


def tasks(search, family, count=SEEDS, heldout=False):
    heldout = heldout or family in search.evaluation_only
    return [search.make_task(family, seed, heldout) for seed in range(count)]


def by_hand(corpus, question):
    """All answers by going through every tuple of entities: slow, and independent of the solver."""
    stated = {(fact.relation, fact.subject, fact.object) for fact in corpus.facts}
    kinds = [[e.id for e in corpus.entities.values() if e.kind == kind] for kind in question.kinds]
    answers = set()
    for values in itertools.product(*kinds):
        if len(set(values)) < len(values):
            continue
        terms = [
            tuple(values[t] if isinstance(t, int) else t for t in (s.subject, s.object))
            for s in question.statements
        ]
        if all((s.relation, *pair) in stated for s, pair in zip(question.statements, terms, strict=True)):
            answers.add(values[0])
    return answers


@pytest.mark.parametrize("family", FAMILIES)
def test_the_answer_is_the_only_one_and_no_step_can_be_skipped(search, family):
    for task in tasks(search, family):
        question = Question.from_record(task.truth["question"])
        assert solve(search.graph, question) == {task.truth["path"][0]}
        assert is_unique(search.graph, question)
        for leaf in question.leaves():
            assert len(solve(search.graph, question, without=leaf)) >= 2
        assert Question.from_record(question.to_record()) == question


def test_the_solver_agrees_with_trying_every_tuple(world):
    corpus = world(seed=3, realms=14).corpus()
    graph, rng, several = Graph(corpus), random.Random(5), 0
    realms = sorted(graph.of_kind["realm"])
    for _ in range(60):
        statements = [Statement("beast", 2, rng.choice(sorted(graph.of_kind["beast"])))]
        for variable in (1, 0):
            relation = rng.choice(["borders", "allied"])
            pair = rng.sample([variable, variable + 1], 2)
            statements.append(Statement(relation, *pair))
        if rng.random() < 0.3:
            statements.append(Statement("allied", 0, rng.choice(realms)))
        question = Question(("realm",) * 3, tuple(statements))
        found = solve(graph, question)
        assert found == by_hand(corpus, question)
        assert len(solve(graph, question, limit=2)) == min(2, len(found))
        several += len(found) > 1
    assert 5 < several < 60


def plant(world, search, task):
    """The world with a second entity of which all is true that the question says about the answer."""
    made, question, path = world(), Question.from_record(task.truth["question"]), task.truth["path"]
    twin = made.add(question.kinds[0], "Twinland")
    for statement in question.statements:
        if 0 in (statement.subject, statement.object):
            subject, object_ = (
                twin if term == 0 else path[term] if isinstance(term, int) else term
                for term in (statement.subject, statement.object)
            )
            made.facts[subject].append((statement.relation, object_))
            if statement.relation == "borders":
                made.facts[object_].append((statement.relation, subject))
    return made.corpus(), question, twin


@pytest.mark.parametrize("family", FAMILIES)
def test_a_planted_second_answer_is_rejected(world, search, family):
    for task in tasks(search, family, 6):
        corpus, question, twin = plant(world, search, task)
        graph = Graph(corpus)
        assert solve(graph, question) == {task.truth["path"][0], twin}
        assert not is_unique(graph, question)


def test_a_generator_over_a_world_of_twins_gives_nothing(world):
    """Where everything that is true of a realm is true of its double, no question has one answer."""
    made = world(seed=9, realms=12)
    twins = {
        e.id: made.add("realm", f"New{e.name}") for e in list(made.entities.values()) if e.kind == "realm"
    }
    for realm in twins:
        for relation, object_ in list(made.facts[realm]):
            made.facts[realm] += [(relation, twins[object_])] if object_ in twins else []
        made.facts[twins[realm]] = list(made.facts[realm])
    with pytest.raises(UserError, match=r"search/links2: the corpus realms gave no training question"):
        Search(made.corpus()).make_task("links2", 0)


def test_a_clue_too_many_makes_a_step_unnecessary(search):
    """The check that each step is needed can fail: a clue that alone names the answer is caught."""
    graph, caught = search.graph, 0
    for task in tasks(search, "links2", 10):
        question, path = Question.from_record(task.truth["question"]), task.truth["path"]
        capital = next(o for r, forward, o in graph.around[path[0]] if r == "capital" and forward)
        told = Question(question.kinds, (*question.statements, Statement("capital", 0, capital)))
        assert is_unique(graph, told)
        assert needs_every_step(graph, question) and not needs_every_step(graph, told)
        caught += 1
    assert caught == 10


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_names_nothing_of_its_walk(search, family):
    for task in tasks(search, family):
        text = f" {normal(task.messages[0]['content'])} "
        for entity in task.truth["path"]:
            entry = search.corpus.entities[entity]
            for name in (entry.name, *entry.aliases, *entry.hints):
                assert f" {normal(name)} " not in text
        asked = Question.from_record(task.truth["question"]).kinds[0]
        assert f"Which {asked} " in task.messages[0]["content"]


def test_families_have_their_number_of_steps(search):
    for family in FAMILIES:
        wanted = len(CHAINS[family]) if family in CHAINS else 2
        for task in tasks(search, family, 5):
            question = Question.from_record(task.truth["question"])
            links = [
                s for s in question.statements if isinstance(s.subject, int) and isinstance(s.object, int)
            ]
            assert len(links) == wanted == len(question.kinds) - 1
            assert family == "meeting" or family.endswith(str(wanted))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_third_of_the_entities_is_kept_for_evaluation(search, family):
    if family in search.families:
        for task in tasks(search, family):
            assert not any(map(is_heldout_entity, task.truth["path"])) and not task.heldout
    for task in tasks(search, family, heldout=True):
        assert is_heldout_entity(task.truth["path"][0]) and task.heldout


def test_the_held_out_share_is_a_third():
    share = sum(is_heldout_entity(f"entity/{number}") for number in range(3000)) / 3000
    assert 0.3 < share < 0.37


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_gives_the_same_task_in_another_object(folder, search, family):
    again = Search(folder)
    heldout = family in search.evaluation_only
    made = [search.make_task(family, seed, heldout) for seed in range(5)]
    assert [again.make_task(family, seed, heldout) for seed in range(5)] == made
    assert len({task.id for task in made}) == 5


def test_draws_follow_the_generator_they_are_given(search):
    drawn = [search.draw("links2", random.Random(4)) for _ in range(2)]
    assert drawn[0] == drawn[1] != search.draw("links2", random.Random(5))


def test_the_tasks_say_where_they_come_from(search):
    task = search.make_task("links2", 0)
    assert task.provenance == f"search corpus realms {search.corpus.digest}"
    assert task.licence == "CC0-1.0"
    assert task.difficulty == 2 * len(task.truth["question"]["statements"])


def test_unknown_and_reserved_families_are_refused(search):
    with pytest.raises(UserError, match="search has no family 'links9'"):
        search.make_task("links9", 0)
    with pytest.raises(UserError, match="search/links4 is kept for evaluation"):
        search.make_task("links4", 0)


def test_a_corpus_too_small_says_so(world):
    with pytest.raises(UserError, match="search/links3: the corpus realms gave no training question"):
        Search(world(seed=1, realms=3).corpus()).make_task("links3", 0)


def test_a_question_reads_as_its_statements(search):
    question = Question(
        ("city", "realm", "realm"),
        (Statement("beast", 2, "beast/lion"), Statement("borders", 2, 1), Statement("capital", 1, 0)),
    )
    assert prompt(search.graph, question) == (
        "Different letters stand for different entities. According to the documents: "
        "The beast on the shield of realm A is lion. Realm A has a border with realm B. "
        "The capital of realm B is city C. Which city C is meant? Look it up with the tools, "
        "then answer with its name alone on the last line."
    )


def test_walks_begin_where_two_clues_are(search):
    walks = Walks(search.graph)
    assert walks.anchors and all(len(walks.clues[entity]) >= 2 for entity in walks.anchors)
    assert not set(walks.trained_anchors) & {entity for entity in walks.anchors if is_heldout_entity(entity)}


def test_families_without_their_steps_are_left_out(world):
    made = world().corpus()
    links = [fact for fact in made.facts if made.relations[fact.relation].role == "link"]
    parts = (list(made.relations.values()), list(made.documents.values()), list(made.entities.values()))
    search = Search(Corpus("links", *parts, links))
    assert search.families == ("links2", "links3", "meeting") and search.evaluation_only == ("links4",)
