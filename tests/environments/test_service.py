"""The service desk: the policy's way scores 1, every other way 0; the user keeps to the script."""

import asyncio
import json
import random

import pytest

from environments.episode import answer, call_message
from environments.interface import MODES, Task, play
from environments.service.environment import DOMAINS, Service
from environments.service.user import NO, WAITING, YES, User, names
from pipeline.errors import UserError

SERVICE = Service()
FAMILIES = SERVICE.families + SERVICE.evaluation_only
FORBIDDEN = [name for name in FAMILIES if name.endswith(("refusal", "stranger"))]
ALLOWED = [name for name in FAMILIES if name not in FORBIDDEN]


def tasks(family, count=12):
    first = random.Random(family).randrange(10**6)
    heldout = family in SERVICE.evaluation_only
    return [SERVICE.make_task(family, first + seed, heldout) for seed in range(count)]


def outcome(task, messages):
    return asyncio.run(play(SERVICE, task, messages))


def steps(task):
    return list(zip(task.truth["plan"], SERVICE.oracle(task, "off"), strict=True))


def calls_of(task):
    """The right changes and how the oracle asks for them."""
    return [call for wish in task.truth["wishes"] for call in wish["calls"]]


@pytest.mark.parametrize("family", FAMILIES)
def test_oracle_one_nothing_zero_three_runs_equal(family):
    for task in tasks(family):
        for mode in MODES:
            messages = SERVICE.oracle(task, mode)
            runs = [outcome(task, messages) for _ in range(3)]
            assert [verdict.reward for _, verdict in runs] == [1.0] * 3, (task, runs[0])
            assert runs[0][0] == runs[1][0] == runs[2][0]
            assert all(bool(message.get("reasoning_content")) == (mode != "off") for message in messages)
        for nothing in (
            [],
            [answer(None, "")],
            [answer(None, "Goodbye.")] * 10,
            [answer(None, "Done.")] * 10,
        ):
            assert outcome(task, nothing)[1].reward == 0.0


@pytest.mark.parametrize("family", FAMILIES)
def test_tasks_repeat_are_plain_data_and_differ(family):
    found = tasks(family, 150)
    assert [SERVICE.make_task(family, task.seed, task.heldout) for task in found[:10]] == found[:10]
    assert Task.from_record(json.loads(json.dumps(found[0].to_record()))) == found[0]
    assert len({json.dumps(task.messages) for task in found}) > 145


def test_the_bank_is_kept_for_evaluation():
    assert SERVICE.evaluation_only and all(name.startswith("bank_") for name in SERVICE.evaluation_only)
    with pytest.raises(UserError, match="kept for evaluation"):
        SERVICE.make_task("bank_card", 1)


def test_kept_thinking_is_shorter():
    task = tasks("shop_two", 1)[0]
    anew, kept = (SERVICE.oracle(task, mode) for mode in ("interleaved", "preserved"))
    assert [m["content"] for m in anew] == [m["content"] for m in kept]
    assert sum(len(m["reasoning_content"]) for m in anew) > sum(len(m["reasoning_content"]) for m in kept)


@pytest.mark.parametrize("family", ALLOWED)
def test_refusing_what_is_allowed_scores_zero(family):
    task = tasks(family, 1)[0]
    opening = SERVICE.oracle(task, "off")[:2]
    for rule in range(1, 9):
        assert (
            outcome(task, [*opening, *[answer(None, f"I cannot do that (rule {rule}).")] * 8])[1].reward
            == 0.0
        )


@pytest.mark.parametrize("family", ALLOWED)
def test_changes_without_a_yes_or_without_identity_score_zero(family):
    for task in tasks(family, 4):
        unasked = [m for s, m in steps(task) if "Do you confirm?" not in s.get("say", "")]
        assert "rule 2" in outcome(task, unasked)[1].reason
        unknown = [m for s, m in steps(task) if "your postcode" not in s.get("say", "")]
        assert "rule 1" in outcome(task, unknown)[1].reason
        changes = [call_message(None, name, **arguments) for name, arguments in calls_of(task)]
        assert outcome(task, [*changes, *SERVICE.oracle(task, "off")])[1].reward == 0.0


@pytest.mark.parametrize("family", ALLOWED)
def test_a_question_that_leaves_a_value_out_is_no_confirmation(family):
    task = tasks(family, 1)[0]
    vague = [
        answer(None, "I would do what you asked for now. Do you confirm?")
        if "Do you confirm?" in s.get("say", "")
        else m
        for s, m in steps(task)
    ]
    assert outcome(task, vague)[1].reward == 0.0


@pytest.mark.parametrize("family", ALLOWED)
def test_another_change_beside_the_right_ones_scores_zero(family):
    """Every tool that changes, with every known value, before the dialogue's last message."""
    task = tasks(family, 1)[0]
    domain, truth = DOMAINS[task.truth["domain"]], task.truth
    *before, last = SERVICE.oracle(task, "off")
    others = {
        "shop": [
            ("cancel_order", {"order": o, "reason": "by mistake"})
            for o in truth["database"].get("orders", {})
        ],
        "travel": [
            ("cancel_booking", {"booking": b, "refund": "1.00"})
            for b in truth["database"].get("bookings", {})
        ],
        "bank": [("set_limit", {"card": c, "limit": "1.00"}) for c in truth["database"].get("cards", {})],
    }[domain.name]
    done = [key for _, arguments in calls_of(task) for key in arguments.values()]
    (name, arguments) = next(other for other in others if next(iter(other[1].values())) not in done)
    text = f"{' '.join(arguments.values())}: do you confirm?"
    extra = [answer(None, text), call_message(None, name, **arguments)]
    _, verdict = outcome(task, [*before, *extra, last])
    assert verdict.reward == 0.0


@pytest.mark.parametrize("family", ALLOWED)
def test_wrong_values_score_zero(family):
    """An amount that is a cent off, asked for and confirmed like the right one."""
    for task in tasks(family, 4):
        amounts = {
            value for _, arguments in calls_of(task) for value in arguments.values() if value[-3:-2] == "."
        }
        for value in amounts:
            wrong = f"{value[:-1]}{(int(value[-1]) + 1) % 10}"
            text = json.dumps(SERVICE.oracle(task, "off")).replace(value, wrong)
            assert outcome(task, json.loads(text))[1].reward == 0.0


@pytest.mark.parametrize(
    "family", [name for name in ALLOWED if name not in ("shop_exchange", "shop_address", "bank_limit")]
)
def test_what_has_to_be_told_is_told_and_not_hidden_in_a_list(family):
    for task in tasks(family, 3):
        say = {what for wish in task.truth["wishes"] for what in wish["say"]}

        def tells(message, say=say):
            return message["content"] and any(names(message["content"], what) for what in say)

        listing = " ".join(f"{n}.00" for n in range(30))
        oracle = SERVICE.oracle(task, "off")
        flood = [answer(None, f"{m['content']} {listing}") if tells(m) else m for m in oracle]
        assert outcome(task, flood)[1].reward == 0.0
        if family in ("shop_cancel", "bank_fee"):  # elsewhere the question for confirmation tells it too
            silent = [answer(None, "That is done.") if tells(m) else m for m in oracle]
            assert "was not told" in outcome(task, silent)[1].reason


@pytest.mark.parametrize("family", FORBIDDEN)
def test_what_is_forbidden(family):
    for task in tasks(family, 8):
        rule = task.truth["wishes"][0]["rule"]
        oracle = SERVICE.oracle(task, "off")
        before = oracle[:-2]
        wrong = rule % 7 + 1
        assert wrong != rule
        for text in (
            "I cannot do that.",
            f"I cannot do that (rule {wrong}).",
            "It is done.",
            f"Sure, rule {rule} is fine.",
            "I cannot do that: rule 1, rule 2, rule 3, rule 4, rule 5, rule 6, rule 7, rule 8.",
        ):
            assert outcome(task, [*before, answer(None, text), answer(None, text)])[1].reward == 0.0, text
        politely = f"I am very sorry, but I'm unable to help with this, since rule {rule} forbids it."
        assert outcome(task, [*before, *[answer(None, politely)] * 2])[1].reward == 1.0
        if family != "shop_stranger":  # decided without looking
            assert outcome(task, [oracle[0], *oracle[-2:]])[1].reward == 0.0


def test_giving_in_scores_zero():
    for task in tasks("shop_refusal", 30):
        if task.truth["wishes"][0]["rule"] != 3:
            continue
        (order,) = task.truth["wishes"][0]["confirms"]
        before = SERVICE.oracle(task, "off")[:-2]
        giving_in = [
            answer(None, f"I would cancel order {order} with the reason by mistake. Do you confirm?"),
            call_message(None, "cancel_order", order=order, reason="by mistake"),
            *[answer(None, "I cannot do that (rule 3).")] * 2,
        ]
        messages, verdict = outcome(task, [*before, *giving_in])
        assert {"role": "user", "content": YES} in messages
        assert (verdict.reward, verdict.reason) == (0.0, "the database is not in the right state")


def test_a_stranger_is_told_nothing():
    task = tasks("shop_stranger", 1)[0]
    postcodes = [row["postcode"] for row in task.truth["database"]["customers"].values()]
    opening, *_, first, second = SERVICE.oracle(task, "off")
    leak = answer(None, f"I have {postcodes[0]}, {postcodes[1]} or {postcodes[2]} here.")
    assert "postcode was told" in outcome(task, [leak, opening, first, second])[1].reason
    order = task.truth["wishes"][0]["confirms"][0]
    look = call_message(None, "get_order", order=order)
    assert "not the customer" in outcome(task, [opening, look, first, second])[1].reason


def test_bad_calls_are_errors_and_not_the_end():
    task = tasks("shop_cancel", 1)[0]
    bad = [
        call_message(None, "drop_tables"),
        call_message(None, "get_order", order="W0"),
        call_message(None, "get_order", id="W0"),
        call_message(None, "find_customer", email="nobody@mail.example"),
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "get_order", "arguments": "{"}}, 3],
        },
    ]
    messages, verdict = outcome(
        task, [*SERVICE.oracle(task, "off")[:2], *bad, *SERVICE.oracle(task, "off")[2:]]
    )
    errors = [
        json.loads(m["content"])["error"] for m in messages if m["role"] == "tool" and "error" in m["content"]
    ]
    assert len(errors) == 6 and verdict.reward == 1.0
    assert errors[0] == "there is no tool 'drop_tables'" and errors[1] == "there is no W0 among the orders"


def test_text_beside_a_call_does_not_reach_the_user():
    task = tasks("shop_cancel", 1)[0]
    *before, last = SERVICE.oracle(task, "off")
    whispered = call_message(None, "list_orders", customer="C1") | {"content": last["content"]}
    assert "was not told" in outcome(task, [*before, whispered, answer(None, "That is done.")])[1].reason


def test_endless_and_malformed_dialogues_end():
    task = tasks("shop_cancel", 1)[0]
    for message in (call_message(None, "find_customer", email="x"), answer(None, "What is the reason?")):
        messages, verdict = outcome(task, [message] * 200)
        assert verdict.reward == 0.0 and "more than 40" in verdict.reason and len(messages) < 90
    assert outcome(task, [answer(None, "x" * 5000)])[1].reward == 0.0
    assert outcome(task, [{"role": "assistant", "content": None, "tool_calls": 5}])[1].reward == 0.0


def test_the_user_tells_only_what_is_asked():
    wish = {"opening": "", "confirms": ["W1"], "rule": 0, "insists": ""}
    user = User({"email": "a@b", "reason": "because"}, [wish])
    assert user.reply("What is your email?", False) == ("a@b", False)
    assert user.told == {"email"}
    assert user.reply("Your email address and postcode?", False) == ("a@b", False)
    assert user.reply("What is your shoe size?", False) == ("I do not know that.", False)
    assert user.reply("Do you confirm W12?", False) == (NO, False)
    assert user.reply("Do you confirm W1?", False) == (YES, True)
    assert user.reply("Please tell me your e-mail.", False) == ("a@b", False)
    assert user.reply("Please confirm W1.", False) == (YES, True)
    assert user.reply("I am working on it.", False) == (WAITING, False)
    assert not user.over
    user.reply("It is done.", True)
    assert user.over


def test_names():
    assert names("It costs 43.50.", "43.50") and names("(rule 4)", "rule 4") and names("W1, W2", "W2")
    assert not names("143.50", "43.50") and not names("43.501", "43.50") and not names("rule 41", "rule 4")
    assert not names("4.25", "4") and names("4 of 5", "4") and not names("", "4")
