"""The real ``openai`` client against the real server."""

import json

import pytest

from model.chat.renderer import render
from model.hub import load_folder
from model.inference.generate import score
from tests.waiting import PATIENCE

from reciting_model import ARGUMENT, CONTENT, REASONING, TOOL, TOOLS, VALUE_TEXT  # isort: skip

openai = pytest.importorskip("openai")
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def client(served):
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)


def deltas_of(stream):
    """The choices' deltas, and the usage where it was sent."""
    deltas, usage = [], None
    for chunk in stream:
        usage = chunk.usage or usage
        deltas += [choice.delta for choice in chunk.choices]
    return deltas, usage


def test_models_are_listed_and_found(client):
    assert {model.id for model in client.models.list()} == {"caller", "speaker"}
    assert client.models.retrieve("speaker").id == "speaker"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


def test_chat_gives_reasoning_and_content_apart(client, tokenizer):
    answer = client.chat.completions.create(model="speaker", messages=HELLO, temperature=0)
    [choice] = answer.choices
    assert (choice.message.reasoning_content, choice.message.content) == (REASONING, CONTENT)
    assert choice.finish_reason == "stop"
    said = [*tokenizer.encode(REASONING), tokenizer.ids_by_name["</think>"], *tokenizer.encode(CONTENT)]
    assert choice.token_ids == [*said, tokenizer.ids_by_name["<|user|>"]]
    assert choice.weight_versions == [0] * len(choice.token_ids)
    prompt = render(tokenizer, HELLO, generation_prompt=True).ids
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len(choice.token_ids)
    assert answer.usage.completion_tokens_details.reasoning_tokens == len(tokenizer.encode(REASONING)) + 1


def test_a_stream_is_the_same_answer_in_parts(client):
    stream = client.chat.completions.create(
        model="speaker", messages=HELLO, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    deltas, usage = deltas_of(stream)
    assert deltas[0].role == "assistant"
    reasoning = [d.reasoning_content for d in deltas if getattr(d, "reasoning_content", None)]
    content = [d.content for d in deltas if d.content]
    assert ("".join(reasoning), "".join(content)) == (REASONING, CONTENT)
    assert len(reasoning) > 2 and len(content) > 2
    assert "\ufffd" not in "".join(content)  # no character is cut in two
    assert usage.completion_tokens > len(content)


def test_thinking_off(client):
    answer = client.chat.completions.create(
        model="speaker", messages=HELLO, temperature=0,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )  # fmt: skip
    assert answer.choices[0].message.content == CONTENT
    assert not hasattr(answer.choices[0].message, "reasoning_content")
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0


def test_clear_thinking_is_the_switch_of_the_template(client, tokenizer):
    history = [
        *HELLO,
        {"role": "assistant", "content": "yes", "reasoning_content": "a long thought"},
        {"role": "user", "content": "and now"},
    ]
    counts = {}
    for clear in (True, False):
        options = {"enable_thinking": True, "clear_thinking": clear}
        answer = client.chat.completions.create(
            model="speaker", messages=history, max_tokens=1, extra_body={"chat_template_kwargs": options}
        )
        counts[clear] = answer.usage.prompt_tokens
    modes = {True: "interleaved", False: "preserved"}
    assert counts == {
        clear: len(render(tokenizer, history, mode=mode, generation_prompt=True).ids)
        for clear, mode in modes.items()
    }


def test_a_tool_call_whole_and_in_deltas(client):
    request = {"model": "caller", "messages": HELLO, "tools": TOOLS, "temperature": 0}
    [choice] = client.chat.completions.create(**request).choices
    [call] = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert choice.message.reasoning_content == REASONING
    assert (call.function.name, json.loads(call.function.arguments)) == (TOOL, {ARGUMENT: VALUE_TEXT})

    deltas, _ = deltas_of(client.chat.completions.create(**request, stream=True))
    parts = [part for delta in deltas for part in delta.tool_calls or []]
    assert [part.index for part in parts] == [0] * len(parts)
    assert parts[0].id and parts[0].id != call.id  # unique in a dialogue
    assert parts[0].function.name == TOOL
    assert json.loads("".join(part.function.arguments for part in parts)) == {ARGUMENT: VALUE_TEXT}

    # The result goes back with the call, as clients send it.
    history = [
        *HELLO, choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "at noon"},
    ]  # fmt: skip
    answer = client.chat.completions.create(model="speaker", messages=history, tools=TOOLS, temperature=0)
    assert answer.choices[0].message.content == CONTENT


def test_tool_choice(client, tokenizer):
    named = {"type": "function", "function": {"name": TOOL}}
    for choice in ("required", named):
        answer = client.chat.completions.create(
            model="caller", messages=HELLO, tools=TOOLS, tool_choice=choice, temperature=0
        )
        [call] = answer.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == (TOOL, {ARGUMENT: VALUE_TEXT})
    without = client.chat.completions.create(
        model="caller", messages=HELLO, tools=TOOLS, tool_choice="none", max_tokens=1
    )
    assert without.usage.prompt_tokens == len(render(tokenizer, HELLO, generation_prompt=True).ids)


def test_chat_logprobs_and_choices(client, tokenizer):
    answer = client.chat.completions.create(
        model="speaker",
        messages=HELLO,
        n=3,
        seed=7,
        temperature=4,
        logprobs=True,
        top_logprobs=2,
        max_tokens=9,
    )
    again = client.chat.completions.create(
        model="speaker", messages=HELLO, n=3, seed=7, temperature=4, max_tokens=9
    )
    assert [c.token_ids for c in answer.choices] == [c.token_ids for c in again.choices]
    assert len({tuple(c.token_ids) for c in answer.choices}) > 1
    for choice in answer.choices:
        assert len(choice.logprobs.content) == len(choice.token_ids)
        for token_id, entry in zip(choice.token_ids, choice.logprobs.content, strict=True):
            assert bytes(entry.bytes) == tokenizer.token_bytes(token_id)
            assert len(entry.top_logprobs) == 2 and entry.top_logprobs[0].logprob >= entry.logprob


def test_stop_strings_are_cut_out(client):
    stop = CONTENT[3:5]
    request = {"model": "speaker", "messages": HELLO, "temperature": 0, "stop": [stop, "never said"]}
    [choice] = client.chat.completions.create(**request).choices
    assert choice.message.content == CONTENT[: CONTENT.index(stop)] and choice.finish_reason == "stop"
    deltas, _ = deltas_of(client.chat.completions.create(**request, stream=True))
    assert "".join(d.content or "" for d in deltas) == choice.message.content


def test_completions_of_text_ids_and_lists(client, tokenizer):
    ids = tokenizer.encode("hello")
    request = {"model": "speaker", "temperature": 0, "max_tokens": 12}
    [text] = client.completions.create(prompt="hello", **request).choices
    [same] = client.completions.create(prompt=ids, **request).choices
    assert text.token_ids == same.token_ids and len(same.token_ids) == 12
    assert text.finish_reason == "length"
    assert text.text.encode() in b"".join(map(tokenizer.token_bytes, text.token_ids)) or "\ufffd" in text.text
    several = client.completions.create(prompt=["hello", "good"], n=2, **request).choices
    assert [c.index for c in several] == [0, 1, 2, 3]
    assert several[0].token_ids == several[1].token_ids == text.token_ids != several[2].token_ids
    streamed = list(client.completions.create(prompt=[ids, ids], stream=True, **request))
    for number in (0, 1):
        choices = [c for chunk in streamed for c in chunk.choices if c.index == number]
        assert "".join(c.text for c in choices) == text.text
        assert [n for c in choices for n in c.token_ids] == text.token_ids
        assert choices[-1].finish_reason == "length"


def test_echo_scores_the_prompt_as_training_does(client, folders, tokenizer):
    """What lm-evaluation-harness asks: the log-probability of every given token."""
    ids = tokenizer.encode("The sum of 12 and 30 is 42")
    answer = client.completions.create(model="speaker", prompt=ids, echo=True, logprobs=1, max_tokens=0)
    [choice] = answer.choices
    expected = score(load_folder(folders["speaker"]), [ids], attention="sparse")[0]
    assert choice.text == tokenizer.decode(ids)
    assert choice.logprobs.token_logprobs[0] is None and choice.logprobs.top_logprobs[0] is None
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(expected.tolist(), abs=1e-4)
    for name, logprob, top in list(
        zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True)
    )[1:]:
        assert top[name] == logprob <= max(top.values())
    offsets = choice.logprobs.text_offset
    assert [choice.text[a:b] for a, b in zip(offsets, offsets[1:], strict=False)] == choice.logprobs.tokens[
        :-1
    ]


def test_errors_reach_the_client_as_its_own_types(client):
    for expected, changes in {
        openai.NotFoundError: {"model": "nobody"},
        openai.UnprocessableEntityError: {"temperature": -1},
        openai.BadRequestError: {"max_tokens": 1_000_000},
    }.items():
        with pytest.raises(expected) as caught:
            client.chat.completions.create(**{"model": "speaker", "messages": HELLO, **changes})
        assert caught.value.body["message"] and caught.value.body["type"]
