"""Every constraint by hand, oracles that keep to them, and answers that game them."""

import asyncio
import json

import pytest

from environments.instructions.constraints import CHECKS, broken
from environments.instructions.environment import Instructions, judge, one
from environments.interface import MODES, is_heldout, play

INSTRUCTIONS = Instructions()
FAMILIES = INSTRUCTIONS.families + INSTRUCTIONS.evaluation_only
# Kind, value, a text that keeps to it, texts that do not.
BY_HAND = [
    ("case", "upper", "THE FILE 2", ["The FILE", "the file", "12 34 56"]),
    ("case", "lower", "the file", ["The file", "12 34 56"]),
    ("case", "title", "The File", ["The file", "THE FILE", "12 34 56"]),
    ("sentence", None, "the file is new", ["", "a file", "key key key", "the\nfile is", "b, c, d, e", ", ,",
      "12 34 56"]),
    ("items", 3, "file, key, path", ["file, key", "file, key, file", "file, key, a path", "file, key,", "3"]),
    ("keys", ["key", "name"], '{"name": "new", "key": 1}',
     ['{"name": "new"}', '{"name": "new", "key": " "}', '{"name": 1, "key": 2, "x": 3}', "name", "[]", "3",
      '{"name": 1, "name": 2, "key": 3}', '{"name": 1, "key": 2', '[["name", 1], ["key", 2]]', '"name"']),
    ("uses", "key", "The key, too", ["the keys", ""]),
    ("avoids", "key", "the keys", ["The KEY is"]),
    ("starts", "use", "Use it", ["to use", ""]),
    ("ends", "key", "the key.", ["key ring", ""]),
    ("exactly", 3, "the file, too", ["the file", "the file is new"]),
    ("at most", 3, "file", ["the file is new"]),
    ("at least", 3, "the file is new", ["the file"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "right", "wrong"), BY_HAND, ids=[f"{r[0]}-{r[1]}" for r in BY_HAND]
)
def test_constraints_by_hand(kind, value, right, wrong):
    assert broken(right, [one(kind, value)]) == []
    for text in wrong:
        assert len(broken(text, [one(kind, value)])) == 1, text


def test_every_constraint_has_a_case_by_hand():
    assert {row[0] for row in BY_HAND} == set(CHECKS)


def tasks(family, count=60):
    heldout = family in INSTRUCTIONS.evaluation_only
    return [INSTRUCTIONS.make_task(family, seed, heldout) for seed in range(7000, 7000 + count)]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_oracle_keeps_to_what_is_asked_in_every_mode(family):
    async def run():
        for task in tasks(family):
            for mode in MODES:
                answers = INSTRUCTIONS.oracle(task, mode)
                _, verdict = await play(INSTRUCTIONS, task, answers)
                assert verdict.reward == 1.0, (task.messages, answers, verdict)
                assert bool(answers[0].get("reasoning_content")) == (mode != "off")
            assert task.heldout or not is_heldout(task.messages)

    asyncio.run(run())


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_asked_stands_in_the_prompt(family):
    """Each constraint but that of being a sentence is said to the policy."""
    for task in tasks(family):
        prompt = task.messages[0]["content"]
        for constraint in task.truth["constraints"]:
            values = constraint["value"] if isinstance(constraint["value"], list) else [constraint["value"]]
            assert all(str(value) in prompt for value in values if value is not None), (prompt, constraint)


@pytest.mark.parametrize("family", FAMILIES)
def test_lazy_answers_score_nothing(family):
    """One text for all, the prompt sent back, the oracle's said twice over, cut off or run together."""
    found = tasks(family)
    lazy = {"", "yes", "12 34 56", "key " * 8, "{}", "the", ", ".join("abcdefgh")}
    for task in found:
        right = task.truth["answers"][0]
        assert all(judge(task, text.strip()).reward == 0 for text in lazy), task
        assert judge(task, "; ".join([right] * 4)).reward == 0, task
        assert judge(task, task.messages[0]["content"] + " ?" + "\nno").reward == 0, task


def test_another_answer_is_right_too_and_a_wrong_one_names_the_fault():
    task = INSTRUCTIONS.make_task("items", 7001)
    (number,) = (part["value"] for part in task.truth["constraints"])
    words = [*"bcdefghkmn"][:number]
    assert judge(task, ",".join(words)).reward == 1.0
    verdict = judge(task, ", ".join([*words, "zz"]))
    assert verdict.reward == 0.0 and verdict.reason == f"not kept: items {number}"


def test_tool_calls_and_second_answers():
    task = INSTRUCTIONS.make_task("use", 7000)
    call = {"function": {"name": "write", "arguments": {}}}
    _, verdict = asyncio.run(play(INSTRUCTIONS, task, [{"role": "assistant", "tool_calls": [call]}]))
    assert verdict.reward == 0.0

    async def twice():
        episode = INSTRUCTIONS.episode()
        await episode.reset(task)
        await episode.step({"role": "assistant", "content": "a"})
        with pytest.raises(RuntimeError, match="over"):
            await episode.step({"role": "assistant", "content": "a"})

    asyncio.run(twice())


def test_prompts_are_many_and_answers_differ():
    for family in INSTRUCTIONS.families:
        found = tasks(family, 200)
        prompts = {json.dumps(task.messages) for task in found}
        assert len(prompts) >= 50, (family, len(prompts))
        assert len({task.id for task in found}) >= 120, family
