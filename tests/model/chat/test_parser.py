"""Sampled tokens back to messages: round trips, streaming, and what is said of malformed turns."""

import random
import re

import pytest
from random_dialogues import TOOLS, message, text

from model.chat.parser import TextParser, TokenParser, parse, parse_text
from model.chat.renderer import render, training_rows
from model.chat.tokens import STOP_TOKENS
from model.config import SPECIAL_TOKENS

TYPED = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "properties": {
                    "s": {"type": "string"},
                    "n": {"type": "integer"},
                    "maybe": {"type": ["string", "null"]},
                    "free": {},
                }
            },
        },
    }
]

CALL = "<tool_call>f<arg_key>s</arg_key><arg_value>1</arg_value></tool_call>"


def completion(tokenizer, answer) -> tuple[list[int], bool]:
    """What the model samples for that answer, and whether its prompt opened a <think> block."""
    user = [{"role": "user", "content": "q"}]
    mode = "interleaved" if answer.get("reasoning_content") else "off"
    prompt = render(tokenizer, user, mode=mode, generation_prompt=True).ids
    return training_rows(tokenizer, [*user, answer], mode=mode)[0].ids[len(prompt) :], mode == "interleaved"


def ids_of(tokenizer, turn: str) -> list[int]:
    """Token ids of a turn written as text, in which names of special tokens are meant as such."""
    ids = []
    for piece in re.split("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")", turn):
        ids += [tokenizer.ids_by_name[piece]] if piece in SPECIAL_TOKENS else tokenizer.encode(piece)
    return ids


def random_answer(rng, forged):
    """An answer that can be read back exactly: what the format itself loses is settled beforehand."""
    answer = message(rng, "assistant", forged)
    answer["content"] = (answer["content"] or "").strip()
    reasoning = answer.pop("reasoning_content", "").strip()
    if reasoning:
        answer["reasoning_content"] = reasoning
    calls = [call.get("function", call) for call in answer.pop("tool_calls", [])]
    if calls:
        answer["tool_calls"] = [
            {"id": f"call_{index}", "type": "function", "function": call} for index, call in enumerate(calls)
        ]
    if not calls and not answer["content"]:
        answer["content"] = "x"
    return answer


def schema(value) -> dict:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return {"type": names.get(type(value), "null")}


def schemas(answer) -> list[dict]:
    """Without a schema a text that reads as JSON would come back as something else."""
    calls = [call["function"] for call in answer.get("tool_calls", [])]
    properties = [{key: schema(value) for key, value in call["arguments"].items()} for call in calls]
    return [
        {"name": call["name"], "parameters": {"properties": p}}
        for call, p in zip(calls, properties, strict=True)
    ]


def test_round_trip_of_random_answers(tokenizer):
    rng, done = random.Random("round"), 0
    while done < 400:
        answer = random_answer(rng, forged=True)
        names = [call["function"]["name"] for call in answer.get("tool_calls", [])]
        if len(set(names)) < len(names):
            continue  # two calls of one function would need one schema for both
        ids, thinking = completion(tokenizer, answer)
        parsed = parse(tokenizer, ids, schemas(answer), thinking)
        assert parsed.message == answer
        assert (parsed.valid, parsed.reason) == (True, None)
        assert parsed.finish == ("tool_calls" if names else "stop")
        done += 1


def joined(deltas) -> dict:
    """The message that a client puts together from deltas."""
    result = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
    for delta in deltas:
        (key,) = delta
        if key == "tool_calls":
            (call,) = delta[key]
            assert call["index"] == len(result[key])
            result[key].append({name: call[name] for name in ("id", "type", "function")})
        else:
            assert delta[key] != ""
            result[key] += delta[key]
    return {key: value for key, value in result.items() if value or key in ("role", "content")}


def random_ids(rng, tokenizer):
    """Mostly malformed turns: any tokens, special ones often."""
    special = list(tokenizer.names_by_id)
    tags = special[-13:-3]
    pools = [special, tags, tags, range(tokenizer.vocab_size), tokenizer.encode("f ok 1 🙂思")]
    return [rng.choice(rng.choice(pools)) for _ in range(rng.randrange(30))]


def test_deltas_of_any_tokens_add_up_to_the_message(tokenizer):
    rng, valid = random.Random("stream"), 0
    for index in range(600):
        if index % 2:
            ids, thinking = completion(tokenizer, random_answer(rng, forged=True))
        else:
            ids, thinking = random_ids(rng, tokenizer), rng.random() < 0.5
        parser = TokenParser(tokenizer, TYPED, thinking)
        deltas = [delta for token_id in ids for delta in parser.feed(token_id)]
        deltas += parser.flush()
        parsed = parser.finish()
        assert joined(deltas) == parsed.message
        assert parsed == parse(tokenizer, ids, TYPED, thinking)
        assert parsed.valid == (parsed.reason is None)
        valid += parsed.valid
    assert 300 <= valid < 320


def mutated(rng, ids, alphabet):
    """The tokens with one to three of them lost, doubled or replaced."""
    ids = list(ids)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(ids))
        ids[at : at + 1] = rng.choice([[], [ids[at]] * 2, [rng.choice(alphabet)]])
        ids = ids or [rng.choice(alphabet)]
    return ids


def test_what_is_called_valid_renders_to_the_tokens_it_came_from(tokenizer):
    rng, valid, invalid = random.Random("inverse"), 0, 0
    turns = [
        f"r</think>a{CALL}{CALL}<|observation|>",
        "r r</think>a b<|user|>",
        f"</think>{CALL}<|observation|>",
    ]
    while valid < 100 or invalid < 100:
        turn = ids_of(tokenizer, rng.choice(turns))
        ids = mutated(rng, turn, [*turn, *tokenizer.names_by_id])
        parsed = parse(tokenizer, ids, TYPED, thinking=True)
        if not parsed.valid:
            invalid += 1
            continue
        valid += 1
        again, _ = completion(tokenizer, parsed.message)
        # White space at edges is the template's to drop; both ends count as one.
        expected = "".join(tokenizer.decode(ids).split()).replace("<|endoftext|>", "<|user|>")
        closing = "" if "reasoning_content" in parsed.message else "</think>"
        assert closing + "".join(tokenizer.decode(again).split()) == expected
    assert valid + invalid < 1000


def test_text_in_any_cuts_gives_what_whole_text_gives_and_no_half_tag(tokenizer):
    rng = random.Random("cuts")
    for _ in range(400):
        if rng.random() < 0.5:
            ids, thinking = completion(tokenizer, random_answer(rng, forged=False))
        else:
            ids, thinking = random_ids(rng, tokenizer), rng.random() < 0.5
        turn = tokenizer.decode(ids)
        parser, deltas, rest = TextParser(TYPED, thinking), [], turn
        while rest:
            cut = rng.randrange(1, 6)
            deltas += parser.feed(rest[:cut])
            rest = rest[cut:]
        deltas += parser.flush()
        parsed = parser.finish(stopped=True)
        assert joined(deltas) == parsed.message
        assert parsed == parse_text(turn, TYPED, thinking)
        if any(stop in turn for stop in STOP_TOKENS):
            assert parsed == parse(tokenizer, ids_of(tokenizer, turn), TYPED, thinking)


def test_half_a_tag_is_held_back_until_it_is_known():
    parser = TextParser(thinking=True)
    assert parser.feed("a</thi") == [{"reasoning_content": "a"}]
    assert parser.feed("nk>b<") == [{"content": "b"}]
    assert parser.feed("c[g") == [{"content": "<c"}]
    assert parser.finish(stopped=True).message["content"] == "b<c[g"


def test_a_character_in_several_tokens_comes_out_whole(tokenizer):
    ids = tokenizer.encode("🙂")
    assert len(ids) > 1
    parser = TokenParser(tokenizer, thinking=False)
    assert [parser.feed(token_id) for token_id in ids] == [[]] * (len(ids) - 1) + [[{"content": "🙂"}]]


@pytest.mark.parametrize(
    "turn, thinking, reason, content",
    [
        ("r</think>a<|user|>", True, None, "a"),
        ("</think>a<|endoftext|>", True, None, "a"),
        ("a<|user|>", False, None, "a"),
        (f"r</think>{CALL}\n{CALL}<|observation|>", True, None, "\n"),
        ("<tool_call>f</tool_call><|observation|>", False, None, ""),
        ("r</think>a", True, "without a stop token", "a"),
        ("r<|user|>", True, "not closed with </think>", ""),
        ("<think>r</think>a<|user|>", True, "<think> out of place in the reasoning", "a"),
        ("r</think>a</think>b<|user|>", True, "</think> out of place in the content", "a</think>b"),
        ("a<|assistant|>b<|user|>", False, r"<\|assistant\|> out of place in the content", "a<|assistant|>b"),
        ("r</think> <|user|>", True, "the answer is empty", " "),
        (f"r{CALL}<|observation|>", True, "a tool call inside the reasoning", ""),
        (f"a{CALL}<|user|>", False, r"<\|user\|> cannot follow a tool call", "a"),
        ("a<|observation|>", False, "cannot follow an answer without tool calls", "a"),
        (f"{CALL}b<|observation|>", False, "text after a tool call", "b"),
        ("<tool_call>f<arg_key>s<|observation|>", False, "a tool call was not closed", ""),
        ("<tool_call> </tool_call>a<|user|>", False, "without a function name", "a"),
        ("<tool_call>f<arg_value>1</arg_value></tool_call>a<|user|>", False, "<arg_value> out of place", "a"),
        ("<tool_call>f<arg_key>s</arg_key></tool_call>a<|user|>", False, "</tool_call> out of place", "a"),
        (CALL.replace("<arg_value>", "x<arg_value>", 1) + "<|observation|>", False, "between the parts", ""),
        (
            f"<tool_call>f{CALL[12:-12] * 2}</tool_call><|observation|>",
            False,
            "'s' of a tool call stands twice",
            "",
        ),
        (
            CALL.replace(">s<", ">n<").replace(">1<", ">one<") + "<|observation|>",
            False,
            "'n' of f is not JSON",
            "",
        ),
        ("a<|user|>b", False, "text after the stop token", "a"),
        ("a<|user|><|user|>", False, r"<\|user\|> after the stop token", "a"),
    ],
)
def test_faults_are_named_and_the_rest_is_kept(tokenizer, turn, thinking, reason, content):
    parsed = parse(tokenizer, ids_of(tokenizer, turn), TYPED, thinking)
    assert parsed.message["content"] == content
    assert parsed.valid == (reason is None)
    if reason:
        with pytest.raises(AssertionError, match=reason):
            raise AssertionError(parsed.reason)
    if turn != "r</think>a":
        assert parse_text(turn, TYPED, thinking) == parsed
        assert parsed.finish == ("tool_calls" if "tool_calls" in parsed.message else "stop")
    else:
        assert parsed.finish == "length"
        assert parse_text(turn, TYPED, thinking).valid  # an API takes the stop token off


@pytest.mark.parametrize(
    "key, written, value",
    [
        ("s", "12", "12"),
        ("s", " null", " null"),
        ("n", "12", 12),
        ("maybe", "null", None),
        ("maybe", "nul", "nul"),
        ("free", '{"a": [1]}', {"a": [1]}),
        ("free", "plain", "plain"),
        ("unknown", "true", True),
        ("unknown", "NaN", "NaN"),
        ("unknown", "[" * 100_000, "[" * 100_000),
        ("unknown", "9" * 5_000, "9" * 5_000),
    ],
)
def test_types_of_arguments(key, written, value):
    turn = f"<tool_call>f<arg_key>{key}</arg_key><arg_value>{written}</arg_value></tool_call>"
    parsed = parse_text(turn, TYPED, thinking=False)
    assert parsed.message["tool_calls"][0]["function"] == {"name": "f", "arguments": {key: value}}
    assert parsed.valid


def test_text_of_a_tag_spelt_with_ordinary_tokens_is_text(tokenizer):
    rng = random.Random("spelt")
    for name in SPECIAL_TOKENS:
        ids = [*tokenizer.encode(text(rng) + name + "x"), tokenizer.ids_by_name["<|user|>"]]
        parsed = parse(tokenizer, ids, TOOLS, thinking=False)
        assert parsed.valid and parsed.message["content"].endswith(name + "x")


def test_a_token_of_no_vocabulary_is_a_fault(tokenizer):
    ids = [*tokenizer.encode("a"), tokenizer.vocab_size, tokenizer.ids_by_name["<|user|>"]]
    parsed = parse(tokenizer, ids, thinking=False)
    assert parsed.reason == f"token {tokenizer.vocab_size} is not in the tokenizer's vocabulary"
    assert parsed.message["content"] == "a\ufffd" and not parsed.valid
