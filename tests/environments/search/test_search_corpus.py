"""The folder of a corpus: what is stored is what is read; each fault is named with its file and line."""

import json
import shutil

import pytest

from environments.search.corpus import Corpus, Document, Entity, Fact, Graph, Relation, load
from environments.search.index import Index, words
from environments.search.names import Names, normal
from pipeline.errors import UserError


def test_a_stored_corpus_is_the_same_when_it_is_read(folder, world):
    made = world().corpus()
    read = load(folder)
    assert (read.documents, read.entities, read.facts) == (made.documents, made.entities, made.facts)
    assert (read.relations, read.sources, read.digest) == (made.relations, made.sources, made.digest)
    assert read.digest != world(seed=8).corpus().digest


def test_the_digest_changes_with_every_part(world):
    made = world().corpus()
    parts = (
        list(made.relations.values()),
        list(made.documents.values()),
        list(made.entities.values()),
        made.facts,
    )
    for number in range(4):
        fewer = [
            part[:-1] if index == number and number in (1, 3) else part for index, part in enumerate(parts)
        ]
        if number == 0:
            fewer[0] = [*parts[0], Relation("more", "{subject} {object}", "link", True)]
        if number == 2:
            fewer[2] = [*parts[2], Entity("x", "realm", "X")]
        if number == 1:
            fewer[1] = [*parts[1][:-1], Document(parts[1][-1].id, "other", parts[1][-1].text, "realms")]
        assert Corpus("realms", *fewer).digest != made.digest


@pytest.mark.parametrize(
    ("file", "line", "change", "said"),
    [
        ("facts.jsonl", 3, "{", r"facts\.jsonl, line 3, is no fact"),
        ("facts.jsonl", 3, "[]", r"facts\.jsonl, line 3, is no fact"),
        ("facts.jsonl", 2, {"line": "2"}, r"facts\.jsonl, line 2, is no fact"),
        ("facts.jsonl", 2, {"extra": 1}, r"facts\.jsonl, line 2, is no fact .*extra"),
        ("facts.jsonl", 2, {"line": 99}, "points to line 99 of .*, which is not there"),
        ("facts.jsonl", 2, {"document": "nowhere"}, "of nowhere, which is not there"),
        ("facts.jsonl", 2, {"object": "realm/atlantis"}, "unknown entity realm/atlantis"),
        ("facts.jsonl", 2, {"relation": "hates"}, "unknown relation"),
        ("entities.jsonl", 5, {"name": None}, r"entities\.jsonl, line 5, is no entity"),
        ("entities.jsonl", 5, {"id": "realm/again"}, "unknown entity"),
        ("documents.jsonl", 1, {"text": 5}, r"documents\.jsonl, line 1, is no document"),
    ],
)
def test_a_bad_line_is_named(folder, tmp_path, file, line, change, said):
    copy = tmp_path / "corpus"
    shutil.copytree(folder, copy)
    rows = (copy / file).read_text().splitlines()
    if isinstance(change, str):
        rows[line - 1] = change
    else:
        rows[line - 1] = json.dumps({**json.loads(rows[line - 1]), **change})
    (copy / file).write_text("\n".join(rows) + "\n")
    with pytest.raises(UserError, match=said):
        load(copy)


def test_a_missing_file_and_a_bad_description_are_named(folder, tmp_path):
    with pytest.raises(UserError, match=r"no search corpus, it lacks corpus\.json, documents\.jsonl"):
        load(tmp_path)
    copy = tmp_path / "corpus"
    shutil.copytree(folder, copy)
    for text in ("{", "[]", '{"name": "x", "sources": [], "relations": {"a": {"colour": 1}}}'):
        (copy / "corpus.json").write_text(text)
        with pytest.raises(UserError, match=r"corpus\.json is not the description of a search corpus"):
            load(copy)


def test_relations_with_wrong_fields_or_roles_and_doubled_ids_are_refused():
    a, b = Entity("a", "k", "A"), Entity("b", "k", "B")
    document = Document("d", "D", "text", "s")
    with pytest.raises(UserError, match="has other fields than"):
        Corpus("c", [Relation("r", "{who} loves {object}", "link", True)], [document], [a, b], [])
    with pytest.raises(UserError, match="role 'friend', not link or attribute"):
        Corpus("c", [Relation("r", "{subject}", "friend", True)], [document], [a, b], [])
    with pytest.raises(UserError, match="two Entity entries have one id"):
        Corpus("c", [], [document], [a, a], [])


def test_the_graph_goes_both_ways():
    entities = [Entity(name, "k", name) for name in "abc"]
    facts = [Fact("r", "a", "b", "d", 1), Fact("r", "a", "c", "d", 1), Fact("r", "b", "c", "d", 1)]
    relation = Relation("r", "{subject} {object}", "link", True)
    graph = Graph(Corpus("c", [relation], [Document("d", "D", "text", "s")], entities, facts))
    assert graph.reached("r", "a", True) == {"b", "c"}
    assert graph.reached("r", "c", False) == {"a", "b"}
    assert graph.reached("r", "c", True) == frozenset()
    for _ in range(2):  # the second time from memory
        assert graph.image("r", frozenset("abc"), True, "k") == {"b", "c"}
    assert graph.image("r", frozenset("a"), False, "k") == frozenset()


def test_bm25_ranks_by_rare_words_and_repeats():
    documents = [
        Document("common", "One", "the sea the sea the land", "s"),
        Document("rare", "Two", "the sea and the Gletscher", "s"),
        Document("titled", "Gletscher", "nothing else here", "s"),
        Document("other", "Four", "land and land", "s"),
    ]
    index = Index(documents)
    assert {d.id for d in index.search("GLETSCHER", 5)} == {"rare", "titled"}
    assert index.search("sea gletscher", 1)[0].id == "rare"
    assert index.search("unknown words", 5) == []
    assert index.search("of the", 5) == []
    assert index.search("land sea", 4) == index.search("land sea", 4)


def test_words_and_names_lose_case_accents_and_punctuation():
    assert words("The São-Tomé River, 4,810 m") == ["sao", "tome", "river", "4", "810", "m"]
    assert normal("The C\u00f4te d\u2019Ivoire.") == normal("cote d'ivoire") == "cote divoire"
    assert normal("Trinidad & Tobago") == normal("trinidad and  Tobago!")
    assert normal("1,234.5 km") == "1234.5 km"
    assert normal("3.5") != normal("35")
    assert normal("**Lisbon**") == "lisbon"
    assert normal("?!") == ""


def test_an_alias_of_two_entities_is_no_answer_but_still_tells():
    entities = {
        "n": Entity("n", "realm", "North", ("The Isles", "Up")),
        "s": Entity("s", "realm", "South", ("the isles",), ("southern",)),
    }
    names = Names(entities)
    assert names.accepted == {"n": ["north", "up"], "s": ["south"]}
    assert names.are_told(["n"], "Somewhere in the Isles, far off")
    assert names.are_told(["s"], "a Southern wind")
    assert not names.are_told(["n", "s"], "a northerly, upper wind")
