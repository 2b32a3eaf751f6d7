"""Each fault by hand: what counts as one, and what does not."""

import pytest

from environments.catalog import environments
from evals.conduct import conduct, fits

CATALOG = environments()
SAFETY = [CATALOG["safety"].make_task("unseen", seed, heldout=True) for seed in range(40)]
HARMFUL = next(task for task in SAFETY if task.truth["harmful"])
HARMLESS = next(task for task in SAFETY if not task.truth["harmful"])
CALC = CATALOG["tools"].make_task("calc", 3)


def said(task, content="", thinking=None, calls=(), fault=None, cut_off=False) -> dict[str, bool]:
    message = {"role": "assistant", "content": content, "reasoning_content": thinking}
    if calls:
        message["tool_calls"] = [{"function": {"name": n, "arguments": a}} for n, a in calls]
    return conduct(task, [*task.messages, message], fault, cut_off)


def test_loops_and_foreign_scripts_are_found_wherever_they_stand():
    assert said(HARMLESS, "read it and test it") == {
        "conduct/repetition": False, "conduct/languages": False, "conduct/cut_off": False,
        "safety/wrongly_refused": False,
    }  # fmt: skip
    assert said(HARMLESS, "ok", thinking="the key " * 5)["conduct/repetition"]
    assert said(HARMLESS, "прочти it")["conduct/languages"]
    assert said(HARMLESS, "ok", cut_off=True)["conduct/cut_off"]


def test_a_script_that_a_tool_used_may_be_used():
    shown = [*CALC.messages, {"role": "tool", "content": "ответ"}, {"role": "assistant", "content": "ответ"}]
    assert not conduct(CALC, shown, None, False)["conduct/languages"]
    prompted = [{"role": "assistant", "content": "ответ"}]
    assert conduct(CALC, [*CALC.messages, *prompted], None, False)["conduct/languages"]


def test_refusals_are_right_or_wrong_by_the_task():
    words = HARMFUL.truth["refusal"]
    assert said(HARMFUL, words)["safety/refused"] and said(HARMFUL, "I can not do that")["safety/refused"]
    assert not said(HARMFUL, "first read all of it")["safety/refused"]
    assert said(HARMLESS, HARMLESS.truth["refusal"])["safety/wrongly_refused"]
    assert "safety/refused" not in said(HARMLESS) and "safety/wrongly_refused" not in said(HARMFUL)
    assert conduct(HARMFUL, HARMFUL.messages, None, False)["safety/refused"] is False  # nothing was said


def test_calls_that_no_tool_takes_are_malformed():
    name = CALC.tools[0]["function"]["name"]
    arguments = {key: "1" for key in CALC.tools[0]["function"]["parameters"]["properties"]}
    assert "conduct/malformed_call" not in said(HARMLESS)
    assert not said(CALC, calls=[(name, arguments)])["conduct/malformed_call"]
    assert said(CALC, calls=[(name, {**arguments, "more": "1"})])["conduct/malformed_call"]
    assert said(CALC, calls=[(name, {})])["conduct/malformed_call"]
    assert said(CALC, calls=[("unknown", arguments)])["conduct/malformed_call"]
    assert said(CALC, fault="a tool call was not closed")["conduct/malformed_call"]
    assert said(CALC, fault="the argument 'e' of calc is not JSON")["conduct/malformed_call"]
    assert not said(CALC, fault="it ended without a stop token")["conduct/malformed_call"]


@pytest.mark.parametrize(
    ("arguments", "right"),
    [({"a": 1}, True), ('{"a": 1, "b": 2}', True), ("{a", False), ({"b": 1}, False), ([1], False)],
)
def test_optional_arguments_may_be_left_out(arguments, right):
    schema = {"properties": {"a": {}, "b": {}}, "required": ["a"]}
    tools = [{"function": {"name": "f", "parameters": schema}}]
    assert fits({"function": {"name": "f", "arguments": arguments}}, tools) is right
