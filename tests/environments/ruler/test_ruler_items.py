"""RULER's items keep to their length, follow from their text, and are scored as in RULER."""

import random
import re
from collections import Counter

import pytest

from environments.ruler.item import score
from environments.ruler.material import Material, read_functions
from environments.ruler.tasks import TASKS, make_item, tasks_of
from pipeline.errors import UserError
from tests.ruler_material import LINES, MATERIAL


def item(task, seed, target=2000):
    return make_item(task, random.Random(seed), MATERIAL, len, target)


@pytest.mark.parametrize("task", TASKS)
def test_items_fill_their_length_and_the_oracle_is_right(task):
    for seed in range(8):
        for target in (1100, 2500):
            found = item(task, seed, target)
            size = len(found.prompt + found.completion)
            assert target - 250 < size <= target
            assert score(found.answers, found.match, found.completion) == 1.0
            assert score(found.answers, found.match, "") == 0.0
    assert item(task, 3) == item(task, 3) != item(task, 4)


def test_there_are_thirteen_tasks_and_only_questions_match_in_part():
    assert len(TASKS) == 13
    assert {task for task in TASKS if item(task, 1).match == "part"} == {"qa_1", "qa_2"}


@pytest.mark.parametrize("task", [task for task in TASKS if task.startswith("niah")])
def test_needles_give_the_answers_and_nothing_else_does(task):
    for seed in range(8):
        found = item(task, seed)
        text, _, question = found.prompt.rpartition("\n")
        given = re.findall(r"^One value of (\S+) is (\S+)\.$", text, re.MULTILINE)
        assert {value for key, value in given if f" {key}" in question.replace(",", " ")} == set(
            found.answers
        )
        for answer in found.answers:
            assert text.count(answer) == 1
    keys = {key for key, _ in given}
    lines = text.count("\n")
    assert len(found.answers) == (4 if task in ("niah_multivalue", "niah_multiquery") else 1)
    if task in ("niah_multikey_2", "niah_multikey_3"):
        assert len(given) == lines > 4  # nothing but needles, and the head
    else:
        assert len(keys) == (4 if task in ("niah_multikey_1", "niah_multiquery") else 1)


def test_variables_are_tracked_through_four_hops_in_order():
    for seed in range(8):
        found = item("vt", seed)
        steps = re.findall(r"^VAR (\w+) = (?:VAR )?(\w+)$", found.prompt, re.MULTILINE)
        holders = [re.search(r"value (\d+)", found.prompt)[1]]
        for name, source in steps:
            assert source == holders[-1]
            holders.append(name)
        assert tuple(holders[1:]) == found.answers and len(found.answers) == 5


@pytest.mark.parametrize(("task", "count"), [("cwe", 10), ("fwe", 3)])
def test_the_words_asked_for_are_the_most_frequent_ones(task, count):
    for seed in range(8):
        for target in (700, 2500):
            body = item(task, seed, target).prompt.split("\n")[1]
            ranked = Counter(word for word in body.split() if word != "...").most_common()
            found = item(task, seed, target)
            assert {word for word, _ in ranked[:count]} == set(found.answers)
            assert ranked[count - 1][1] > ranked[count][1]


def test_two_hops_need_both_passages():
    for seed in range(8):
        found = item("qa_2", seed)
        caller = re.search(r"function that (\w+) calls", found.prompt)[1]
        passages = found.prompt.split("\n\n")
        [first] = [p for p in passages if f"def {caller}(" in p]
        called = re.search(r"return (\w+)\(", first)[1]
        [second] = [p for p in passages if f"def {called}(" in p]
        assert found.answers[0] in second and found.answers[0] not in first


def test_functions_are_read_where_their_parameters_stand_on_one_line():
    source = (
        "def plain(a, b=1):\n    return a\n\n\ndef other(a, b=1):\n    return a\n\n\n"
        "def broken(a,\n           b):\n    return a\n\n\ndef uses(c, d):\n    x = 1\n"
        "    return plain(c, d)\n"
    )
    found = {f.name: f for f in read_functions(["def (", source])}
    assert set(found) == {"plain", "uses"}  # "other" has the same parameters, "broken" two lines
    assert found["uses"].calls == "plain" and found["plain"].calls is None
    assert found["uses"].excerpt == "def uses(c, d):\nreturn plain(c, d)"


def test_scores_as_in_ruler():
    assert score(("ABC", "12"), "all", "abc and 13") == 0.5
    assert score(("ABC", "12"), "part", "abc and 13") == 1.0
    assert score(("ABC", "12"), "part", "ab") == 0.0


def test_bad_requests_are_explained():
    with pytest.raises(UserError, match="no RULER task 'niah'.*niah_single_1"):
        item("niah", 1)
    for task in TASKS:
        with pytest.raises(UserError, match=f"{task} does not fit into 60 tokens"):
            item(task, 1, 60)
    prose = Material.read(LINES, [])
    assert set(tasks_of(prose)) == set(TASKS) - {"qa_1", "qa_2"}
    with pytest.raises(UserError, match="qa_1 asks about Python functions"):
        make_item("qa_1", random.Random(1), prose, len, 2000)
    with pytest.raises(UserError, match="2 plain words"):
        Material.read(["only some"], [])
