"""Loss mask, prefix property and training rows of the chat renderer."""

import random

import pytest
from random_dialogues import TOOLS, dialogue, text

from model.chat.renderer import render, training_rows
from model.chat.tokens import MODES, Thinking

AGENT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Sum?"},
    {
        "role": "assistant",
        "content": "Calling.",
        "reasoning_content": "need a tool",
        "tool_calls": [{"function": {"name": "add", "arguments": {"left": 1, "how": "fast"}}}],
    },
    {"role": "tool", "content": "3"},
    {"role": "tool", "content": "ok"},
    {"role": "assistant", "content": "It is 3."},
    {"role": "user", "content": "Thanks"},
]


def marked(tokenizer, rendered) -> str:
    """The text with «» around what is trained."""
    assert len(rendered.ids) == len(rendered.train)
    result, on = "", False
    for token_id, train in zip(rendered.ids, rendered.train, strict=True):
        result += {(False, True): "«", (True, False): "»"}.get((on, train), "") + tokenizer.decode([token_id])
        on = train
    return result + "»" * on


def test_mask_of_an_agent_dialogue(tokenizer):
    assert marked(tokenizer, render(tokenizer, AGENT, mode="preserved")) == (
        "[gMASK]<sop><|system|>Be brief.<|user|>Sum?<|assistant|><think>«need a tool</think>Calling."
        "<tool_call>add<arg_key>left</arg_key><arg_value>1</arg_value>"
        "<arg_key>how</arg_key><arg_value>fast</arg_value></tool_call><|observation|>»"
        "<tool_response>3</tool_response><tool_response>ok</tool_response>"
        "<|assistant|></think>«It is 3.<|user|>»Thanks"
    )


def test_a_wrong_turn_stays_in_context_but_is_masked_with_its_stop_token(tokenizer):
    wrong = [dict(message) for message in AGENT]
    wrong[2]["train"] = False
    rendered = render(tokenizer, wrong, mode="preserved")
    assert rendered.ids == render(tokenizer, AGENT, mode="preserved").ids
    assert marked(tokenizer, rendered).count("«") == 1
    assert marked(tokenizer, rendered).endswith("</think>«It is 3.<|user|>»Thanks")


def test_a_role_token_that_does_not_end_the_turn_is_not_trained(tokenizer):
    call = {"role": "assistant", "tool_calls": [{"name": "f"}]}
    user, plain = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    for dialogue_, expected in [
        ([call, user], "«<tool_call>f</tool_call>»<|user|>a"),
        ([plain, {"role": "tool", "content": "r"}], "«b»<|observation|><tool_response>r</tool_response>"),
        ([plain, plain], "«b»<|assistant|></think>«b»"),
        ([plain, {"role": "system", "content": "s"}], "«b»<|system|>s"),
    ]:
        assert (
            marked(tokenizer, render(tokenizer, dialogue_)) == "[gMASK]<sop><|assistant|></think>" + expected
        )


def test_tools_are_scaffold_and_show_real_tokens(tokenizer):
    rendered = render(tokenizer, [{"role": "user", "content": "a"}], TOOLS)
    assert not any(rendered.train)
    assert rendered.ids.count(tokenizer.ids_by_name["<tool_call>"]) == 1
    written = tokenizer.decode(rendered.ids)
    assert written.startswith("[gMASK]<sop><|system|># Tools\n")
    assert '\n{"name": "größe", ' in written and "</tools>\n" in written


@pytest.mark.parametrize("mode", MODES)
def test_generation_prompt(tokenizer, mode):
    prompt = render(tokenizer, AGENT[:2], mode=mode, generation_prompt=True)
    opening = "<|assistant|></think>" if mode == "off" else "<|assistant|><think>"
    assert tokenizer.decode(prompt.ids).endswith("<|user|>Sum?" + opening)
    assert not any(prompt.train)


def prefixes(tokenizer, messages, tools, mode):
    """For each k: does rendering k messages give a prefix of rendering k + 1?"""
    rows = [render(tokenizer, messages[:k], tools, mode).ids for k in range(1, len(messages) + 1)]
    return [later[: len(row)] == row for row, later in zip(rows, rows[1:], strict=False)]


@pytest.mark.parametrize("enabled", [True, False])
def test_preserved_thinking_is_append_only(tokenizer, enabled):
    rng = random.Random(f"prefix {enabled}")
    for _ in range(80):
        messages = dialogue(rng, forged=True)
        assert all(prefixes(tokenizer, messages, TOOLS, Thinking(enabled, clear=False)))


def test_cleared_thinking_breaks_the_prefix_exactly_where_stated(tokenizer):
    rng, broken = random.Random("clear"), 0
    for _ in range(150):
        messages = dialogue(rng, forged=True)
        expected, open_reasoning = [], False
        for message, following in zip(messages, messages[1:], strict=False):
            if message["role"] == "user":
                open_reasoning = False
            open_reasoning |= message["role"] == "assistant" and bool(message.get("reasoning_content"))
            expected.append(not (following["role"] == "user" and open_reasoning))
        assert prefixes(tokenizer, messages, None, "interleaved") == expected, messages
        assert prefixes(tokenizer, messages, None, "off") == expected
        broken += expected.count(False)
        bare = [{key: m[key] for key in m if key != "reasoning_content"} for m in messages]
        assert all(prefixes(tokenizer, bare, None, "interleaved"))
    assert broken > 50


def test_the_generation_prompt_is_a_prefix_of_the_answer_it_opens(tokenizer):
    rng = random.Random("open")
    for _ in range(100):
        messages = [{"role": "user", "content": text(rng)}]
        for mode, reasoning in [
            ("interleaved", "r" + text(rng)),
            ("preserved", "r" + text(rng)),
            ("off", None),
        ]:
            answer = {"role": "assistant", "content": text(rng), "reasoning_content": reasoning}
            prompt = render(tokenizer, messages, mode=mode, generation_prompt=True).ids
            row = training_rows(tokenizer, [*messages, answer], mode=mode)[0]
            assert row.ids[: len(prompt)] == prompt
            # Everything after the prompt is sampled, so everything is trained, and nothing before it.
            assert row.train == [False] * len(prompt) + [True] * (len(row.ids) - len(prompt))


def test_training_rows_show_each_turn_in_the_context_it_is_sampled_in(tokenizer):
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "A", "reasoning_content": "ra"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "B", "reasoning_content": "rb", "tool_calls": [{"name": "f"}]},
        {"role": "tool", "content": "t"},
        {"role": "assistant", "content": "C", "reasoning_content": "rc"},
        {"role": "user", "content": "unanswered"},
    ]
    first, second = training_rows(tokenizer, chat, mode="interleaved")
    assert marked(tokenizer, first) == "[gMASK]<sop><|user|>a<|assistant|><think>«ra</think>A<|user|>»"
    assert marked(tokenizer, second) == (
        "[gMASK]<sop><|user|>a<|assistant|></think>A<|user|>b<|assistant|><think>«rb</think>B<tool_call>f</tool_call>"
        "<|observation|>»<tool_response>t</tool_response><|assistant|><think>«rc</think>C<|user|>»"
    )
    (whole,) = training_rows(tokenizer, chat, mode="preserved")
    assert whole == render(tokenizer, chat, mode="preserved")
    (cut,) = training_rows(tokenizer, chat[:4], mode="preserved")
    assert marked(tokenizer, cut).endswith("B<tool_call>f</tool_call><|observation|>»")


def test_training_rows_without_reasoning_are_one_row(tokenizer):
    chat = [{"role": role, "content": "x"} for role in ("user", "assistant") * 3]
    (row,) = training_rows(tokenizer, chat, mode="off")
    turn = "<|assistant|></think>«x<|user|>»"
    assert marked(tokenizer, row) == f"[gMASK]<sop><|user|>x{turn}x{turn}x{turn}"
    assert training_rows(tokenizer, chat[:1], mode="off") == []
    chat[1]["train"] = False
    (masked,) = training_rows(tokenizer, chat, mode="off")
    assert marked(tokenizer, masked).count("«") == 2
    assert training_rows(tokenizer, chat[:2], mode="off") == []


def test_training_rows_of_random_dialogues_train_every_turn_once_in_its_own_context(tokenizer):
    rng, several = random.Random("rows"), 0
    for _ in range(100):
        messages, mode = dialogue(rng), rng.choice(list(MODES))
        turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        for index in turns:
            messages[index]["content"] = f"TURN{index}."
        rows = training_rows(tokenizer, messages, TOOLS, mode)
        several += len(rows) > 1
        trained = "".join(marked(tokenizer, row) for row in rows).split("«")[1:]
        written = [turn for turn in turns if any(f"TURN{turn}." in part.split("»")[0] for part in trained)]
        assert written == turns and len(trained) == len(turns)
        for index in turns:  # the context in which it is trained is the prompt under which it is sampled
            thinking = MODES[mode]._replace(enabled=bool(messages[index].get("reasoning_content")))
            before = messages[:index] or [{"role": "user"}]
            prompt = render(tokenizer, before, TOOLS, thinking, generation_prompt=True).ids
            following = [row.train[len(prompt)] for row in rows if row.ids[: len(prompt)] == prompt]
            assert index == 0 or any(following)
    assert several > 10


def test_arguments_may_be_json_text(tokenizer):
    as_object = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "f", "arguments": {"n": 1, "s": "é"}}}],
    }
    as_text = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "f", "arguments": '{"n": 1, "s": "é"}'}}],
    }
    empty = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}
    assert render(tokenizer, [as_object]) == render(tokenizer, [as_text])
    assert tokenizer.decode(render(tokenizer, [empty]).ids).endswith("</think><tool_call>f</tool_call>")


@pytest.mark.parametrize(
    "message, sentence",
    [
        ({"role": "narrator", "content": "x"}, "message 1 of the chat: its role is 'narrator'"),
        ("hello", "message 1 of the chat: its role is None"),
        ({"role": "user", "content": 3}, "message 1 of the chat: content must be text"),
        ({"role": "user", "content": [{"type": "image"}]}, "other media are not supported"),
        ({"role": "assistant", "reasoning_content": ["x"]}, "reasoning_content must be text"),
        ({"role": "assistant", "tool_calls": [{"name": ""}]}, "no function name"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{"}]}, "call of f are not JSON"),
        (
            {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[1]"}]},
            "must be an object, not list",
        ),
        ({"role": "user", "content": "\ud800"}, "message 1 of the chat: .*lone surrogate"),
    ],
)
def test_bad_messages_are_named(tokenizer, message, sentence):
    with pytest.raises(ValueError, match=sentence):
        render(tokenizer, [{"role": "user", "content": "a"}, message])


def test_bad_calls_are_named(tokenizer):
    with pytest.raises(ValueError, match="at least one message"):
        training_rows(tokenizer, [])
    with pytest.raises(ValueError, match="'fast' is unknown; use one of interleaved, preserved, off"):
        render(tokenizer, AGENT, mode="fast")
