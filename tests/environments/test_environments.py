"""Every family: nothing scores 0, the oracle scores 1 in each mode, answers equal an independent solution."""

import asyncio
import calendar
import datetime
import itertools
import json
import random

import pytest

from environments.catalog import environments, family_names, find_family, select
from environments.interface import MODES, Task, is_heldout, play
from environments.lookup import Lookup, signatures
from model.chat import tokens
from pipeline.errors import UserError
from pipeline.recipe import load_recipe

SOURCE = "\n".join(f"def handler_{i}(item, size_{i % 7}):\n    return item" for i in range(150))
# Those that recipe tiny trains and examines; the others have tests of their own.
CATALOG = select(environments([SOURCE]), load_recipe("tiny").eval_sets.environments)
TRAINED = family_names(CATALOG)
UNSEEN = family_names(CATALOG, evaluation_only=True)
ITEMS = 200


def tasks(name, count=ITEMS, heldout=False):
    environment, family = find_family(CATALOG, name)
    first = random.Random(name).randrange(10**6)
    heldout = heldout or family in environment.evaluation_only
    return environment, [environment.make_task(family, first + seed, heldout) for seed in range(count)]


def verdicts_of(environment, attempts):
    """The verdicts of pairs of a task and prepared answers."""

    async def run():
        return await asyncio.gather(*(play(environment, task, answers) for task, answers in attempts))

    return [verdict for _, verdict in asyncio.run(run())]


@pytest.mark.parametrize("name", TRAINED + UNSEEN)
def test_oracle_scores_one_and_nothing_scores_zero(name):
    environment, found = tasks(name, 8 if name.startswith("code/") else ITEMS)
    for mode in MODES:
        attempts = [(task, environment.oracle(task, mode)) for task in found]
        for (task, answers), verdict in zip(attempts, verdicts_of(environment, attempts), strict=True):
            assert verdict.reward == 1.0, (task, verdict)
            assert all(bool(answer.get("reasoning_content")) == (mode != "off") for answer in answers)
    for nothing in ([], [{"role": "assistant", "content": ""}]):
        verdicts = verdicts_of(environment, [(task, nothing) for task in found])
        assert [verdict.reward for verdict in verdicts] == [0.0] * len(found)


@pytest.mark.parametrize("name", TRAINED + UNSEEN)
def test_tasks_are_plain_data_and_repeat(name):
    environment, found = tasks(name, 5)
    assert [environment.make_task(task.family, task.seed, task.heldout) for task in found] == found
    stored = [Task.from_record(json.loads(json.dumps({"mode": "off", **task.to_record()}))) for task in found]
    attempts = [(task, environment.oracle(task, "interleaved")) for task in stored]
    assert [verdict.reward for verdict in verdicts_of(environment, attempts)] == [1.0] * len(found)


@pytest.mark.parametrize("name", TRAINED)
def test_training_and_heldout_prompts_never_coincide(name):
    trained = {json.dumps(task.messages) for task in tasks(name)[1]}
    heldout = {json.dumps(task.messages) for task in tasks(name, heldout=True)[1]}
    assert not trained & heldout
    assert len(heldout) > 5
    assert all(is_heldout(task.messages) for task in tasks(name, 10, heldout=True)[1])


def test_thinking_modes_are_those_of_the_chat_format():
    assert tuple(tokens.MODES) == MODES


def test_families_kept_for_evaluation_are_not_given_for_training():
    assert len(UNSEEN) >= 2
    for name in UNSEEN:
        environment, family = find_family(CATALOG, name)
        with pytest.raises(UserError, match="kept for evaluation"):
            environment.make_task(family, 1)


def test_unknown_names_are_explained():
    with pytest.raises(UserError, match="no environment 'arithmetik'.*arithmetic"):
        find_family(CATALOG, "arithmetik/add2")
    with pytest.raises(UserError, match="no family 'add9'.*add2"):
        CATALOG["arithmetic"].make_task("add9", 1)
    with pytest.raises(UserError, match="lacks truth"):
        Task.from_record({key: 1 for key in Task.__dataclass_fields__ if key != "truth"})


def path_length(edges, start, goal, longest=4):
    """Brute force, unlike the generator: the fewest edges between two nodes and how many ways there are."""
    nodes = {node for edge in edges for node in edge}
    for inner in range(longest):
        paths = [
            (start, *middle, goal)
            for middle in itertools.permutations(nodes - {start, goal}, inner)
            if all({a, b} in edges for a, b in itertools.pairwise((start, *middle, goal)))
        ]
        if paths:
            return paths
    return []


def walk(arrows, start):
    following = dict(arrow.split(">") for arrow in arrows.split(","))
    node = start
    while node in following:
        node = following[node]
        yield node


def solve(family, prompt):
    words = prompt.split()
    if family in ("add2", "add3", "add4", "sub2", "mul1", "calc", "chain", "chain3"):
        return str(eval(prompt.rstrip("=")))
    if family == "copy":
        return " ".join(words[1:])
    if family in ("reverse", "words"):
        return " ".join(words[:0:-1])
    if family == "rotate":
        return " ".join([*words[2:], words[1]])
    if family == "count":
        return str(words[3].count(words[1]))
    if family in ("max", "min"):
        return str({"max": max, "min": min}[family](map(int, words[1].split(","))))
    if family == "sort":
        return "".join(sorted(words[1]))
    if family == "get":
        return {row[0]: row[1:] for row in words[2].split(",")}[words[0]]
    if family == "best":
        rows = {row[0]: int(row[1:]) for row in words[1].split(",")}
        return max(rows, key=rows.__getitem__)
    if family == "follow":
        return list(walk(words[0], words[2]))[-1]
    if family == "reach":
        return "yes" if words[4] in walk(words[0], words[2]) else "no"
    if family == "shortest":
        edges = [set(edge.split("-")) for edge in words[0].split(",")]
        (path,) = path_length(edges, words[2], words[3])
        return "-".join(path)
    if family == "calendar":
        year, month, day = map(int, words[2].split("-"))
        return calendar.day_abbr[calendar.weekday(year, month, day)].lower()
    if family == "units":
        seconds = {"s": 1, "min": 60, "h": 3600, "day": 86400, "week": 604800}
        inches, metric = {"in": 1, "ft": 12, "yd": 36}, {"cm": 1, "m": 100, "km": 100_000}
        mass = {"g": 1, "kg": 1000}
        a, b = words[1].split("/")
        (table,) = [scale for scale in (seconds, inches, metric, mass) if a in scale and b in scale]
        return str(int(words[0]) * table[a] // table[b])
    return None


@pytest.mark.parametrize("name", [name for name in TRAINED + UNSEEN if name.split("/")[0] not in
                                  ("code", "lookup", "dialogue", "instructions", "safety")])  # fmt: skip
def test_answers_equal_an_independent_solution(name):
    _, found = tasks(name)
    for task in found:
        expected = solve(task.family, task.messages[0]["content"])
        assert task.truth["answers"] == [expected], task


def test_steps_of_sums_and_differences_are_true():
    for name in ("arithmetic/add3", "arithmetic/sub2", "dialogue/total"):
        for task in tasks(name, 50)[1]:
            steps = task.truth["steps"]
            for step in (steps if isinstance(steps, str) else ",".join(steps)).split(","):
                left, _, result = step.partition("=")
                carry, digit = int(result[0]), int(result[1])
                assert eval(left) == (10 * carry + digit if "+" in left else digit - 10 * carry)


def test_dialogue_total_and_next():
    for task in tasks("dialogue/total")[1]:
        asked = [task.messages[0]["content"], *task.truth["follow_ups"]]
        for turn, answer in enumerate(task.truth["answers"]):
            assert int(answer) == eval("".join(part.rstrip("=") for part in asked[: turn + 1]))
    for task in tasks("dialogue/next")[1]:
        digits = sorted(task.messages[0]["content"].split()[1], reverse=True)
        assert task.truth["answers"] == digits[: len(task.truth["answers"])]


def test_lookup_answers_follow_from_the_corpus():
    for name in ("lookup/fact", "lookup/two", "lookup/hop"):
        for task in tasks(name)[1]:
            facts = task.truth["facts"]
            asked = [task.messages[0]["content"], *task.truth["follow_ups"]]
            for question, answer in zip(asked, task.truth["answers"], strict=True):
                key = question.split()[1]
                while key in facts:
                    key = facts[key].split("=")[1]
                assert answer == (key if key.isdigit() else "none")
    for task in tasks("lookup/code", 20)[1]:
        name = task.messages[0]["content"].removeprefix("args of ")
        assert f"def {name}({task.truth['answers'][0]}):" in SOURCE


def test_signatures_keep_plain_functions_only():
    sources = [
        "def clamp(x, low, high): pass\nclass A:\n    def scale(self, by): pass\n    def empty(self): pass",
        "def twice(a): pass\ndef _private(a): pass\ndef many(a, *rest): pass\ndef wide(a, b, c, d): pass",
        "def twice(other): pass",  # another function of that name
        "def broken(:",
    ]
    assert signatures(sources) == {"clamp": "clamp(x, low, high)", "scale": "scale(by)"}
    lookup = Lookup(sources)
    assert "code" not in lookup.families
    with pytest.raises(UserError, match="needs Python documents with 100 plain functions and got 2"):
        lookup.make_task("code", 1)


def test_calendar_covers_leap_days():
    from environments.tools import weekday

    assert weekday("2024-02-29") == datetime.date(2024, 2, 29).strftime("%a").lower() == "thu"
    assert weekday("2023-02-29") == weekday("yesterday") == "error: year-month-day"
