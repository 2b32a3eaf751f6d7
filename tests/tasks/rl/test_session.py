"""Chat requests become segments of exact tokens: appended, realigned or forked, never cut anew."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "model/chat"))

from random_dialogues import TOOLS as MANY_TOOLS
from random_dialogues import dialogue
from small_tokenizer import train_tokenizer

from model.chat.parser import parse
from model.chat.renderer import render, training_rows
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import MODES
from tasks.rl.gateway.session import Session

TOOLS = [{"type": "function", "function": {"name": "calc", "parameters": {
    "type": "object", "properties": {"e": {"type": "string"}}}}}]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(folder, tags_are_special=False)
    return Tokenizer.load(folder)


class Agent:
    """Asks a session with messages, and answers for the model with what it is told to sample."""

    def __init__(self, tokenizer, mode="interleaved", tools=None):
        self.session, self.tokenizer, self.mode, self.tools = (
            Session(tokenizer),
            tokenizer,
            MODES[mode],
            tools,
        )
        self.messages = []

    def ask(self, sampled: list[int], *new, version=0):
        self.messages += new
        prompt = self.session.begin(self.messages, self.tools, self.mode)
        message = parse(self.tokenizer, sampled, self.tools, self.mode.enabled).message
        self.session.finish(prompt, sampled, [-0.5] * len(sampled), [version] * len(sampled), message)
        self.messages.append(message)
        return prompt

    def ids(self, text: str, stop="<|user|>") -> list[int]:
        """Tokens a letter at a time: another cut than the tokenizer makes of the same text."""
        names = self.tokenizer.ids_by_name
        pieces = text.replace("</think>", "\0").replace("<tool_call>", "\1").replace("</tool_call>", "\2")
        pieces = pieces.replace("<arg_key>", "\3").replace("</arg_key>", "\4")
        pieces = pieces.replace("<arg_value>", "\5").replace("</arg_value>", "\6")
        special = [
            "</think>",
            "<tool_call>",
            "</tool_call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ]
        ids = [
            names[special[ord(mark)]] if ord(mark) < 7 else self.tokenizer.encode(mark)[0] for mark in pieces
        ]
        return [*ids, names[stop]]


def user(text):
    return {"role": "user", "content": text}


def tool(text):
    return {"role": "tool", "content": text}


CALL = "add them</think><tool_call>calc<arg_key>e</arg_key><arg_value>1+2</arg_value></tool_call>"


def test_tool_turns_are_appended_to_the_very_tokens_that_were_sampled(tokenizer):
    agent = Agent(tokenizer, tools=TOOLS)
    first = agent.ids(CALL, "<|observation|>")
    assert first[:-1] != tokenizer.encode("add them")  # not the tokenizer's own cut
    agent.ask(first, user("what is 1+2"))
    second = agent.ids("three</think>3")
    prompt = agent.ask(second, tool("3"), version=1)
    (segment,) = agent.session.segments
    opening = render(tokenizer, [user("what is 1+2")], TOOLS, "interleaved", True).ids
    names = tokenizer.ids_by_name
    result = [names["<tool_response>"], *tokenizer.encode("3"), names["</tool_response>"]]
    turn = [*result, names["<|assistant|>"], names["<think>"]]
    assert segment.ids == [*opening, *first, *turn, *second]
    assert segment.sampled == [False] * len(opening) + [True] * len(first) + [False] * len(turn) + [
        True
    ] * len(second)
    assert segment.versions == [-1] * len(opening) + [0] * len(first) + [-1] * len(turn) + [1] * len(second)
    assert prompt.ids == segment.ids[: -len(second)]
    asked, answered = segment.turns
    assert (asked.kind, asked.place, asked.answer) == ("start", 0, len(opening))
    place = len(opening) + len(first)
    assert (answered.kind, answered.place, answered.answer) == ("append", place, place + len(turn))
    assert asked.began <= asked.ended <= answered.began <= answered.ended
    assert agent.session.counts == {"start": 1, "append": 1}


def test_a_stop_token_that_nobody_follows_is_realigned(tokenizer):
    """The model ends its call as if the user spoke next; the tool answers all the same."""
    agent = Agent(tokenizer, tools=TOOLS)
    first = agent.ids(CALL, "<|user|>")
    agent.ask(first, user("what is 1+2"))
    agent.ask(agent.ids("three</think>3"), tool("3"))
    (segment,) = agent.session.segments
    assert agent.session.counts["realign"] == 1
    start = segment.ids.index(first[0], len(render(tokenizer, [user("what is 1+2")], TOOLS, "off", True).ids))
    stop = tokenizer.ids_by_name["<|observation|>"]
    place = segment.ids.index(stop, start)
    assert not segment.sampled[place] and all(segment.sampled[start:place]), "the wrong stop token is gone"
    assert [(turn.kind, turn.place) for turn in segment.turns] == [("start", 0), ("realign", place)]


def test_cleared_thinking_forks_and_keeps_what_was_sampled(tokenizer):
    agent = Agent(tokenizer, "interleaved")
    first, second = agent.ids("so be it</think>yes"), agent.ids("hm</think>no")
    agent.ask(first, user("a"))
    before = list(agent.session.segments[0].ids)
    prompt = agent.ask(second, user("b"))
    assert agent.session.counts == {"start": 1, "fork": 1}
    one, two = agent.session.segments
    assert one.ids == before
    said = first[first.index(tokenizer.ids_by_name["</think>"]) :]  # without the reasoning, as it was sampled
    assert prompt.ids[-len(said) - len(tokenizer.encode("b")) - 2 :][: len(said)] == said
    assert sum(two.sampled) == len(second)


def test_preserved_thinking_appends(tokenizer):
    agent = Agent(tokenizer, "preserved")
    for text in ("a", "b", "c"):
        agent.ask(agent.ids(f"well {text}</think>{text * 2}"), user(text))
    assert agent.session.counts == {"start": 1, "append": 2} and len(agent.session.segments) == 1


def test_folded_context_forks(tokenizer):
    agent = Agent(tokenizer, "preserved", TOOLS)
    agent.ask(agent.ids(CALL, "<|observation|>"), user("what is 1+2"))
    agent.ask(agent.ids(CALL, "<|observation|>"), tool("a long result"))
    whole = list(agent.session.segments[0].ids)
    agent.messages[2] = tool("omitted")
    agent.ask(agent.ids("three</think>3"), tool("3"))
    assert agent.session.counts["fork"] == 1 and agent.session.segments[0].ids == whole
    again = agent.session.segments[1]
    assert sum(again.sampled) == len(agent.ids("three</think>3"))
    letters = agent.ids(CALL, "<|observation|>")
    assert str(letters)[1:-1] in str(again.ids), "turns in a folded context are the sampled tokens"


def test_an_agent_that_leaves_the_thinking_out_still_gets_the_sampled_tokens(tokenizer):
    agent = Agent(tokenizer, "preserved", TOOLS)
    agent.ask(agent.ids(CALL, "<|observation|>"), user("what is 1+2"))
    del agent.messages[-1]["reasoning_content"]
    agent.messages[-1]["tool_calls"][0]["function"]["arguments"] = '{"e": "1+2"}'
    agent.ask(agent.ids("three</think>3"), tool("3"))
    assert agent.session.counts == {"start": 1, "append": 1}


def test_two_requests_at_once_do_not_share_a_segment(tokenizer):
    session = Session(tokenizer)
    first = session.begin([user("a")], None, MODES["off"])
    second = session.begin([user("a")], None, MODES["off"])
    assert first.branch is not second.branch
    message = {"role": "assistant", "content": "x"}
    session.finish(second, [5, 6], [-1.0, -1.0], [0, 0], message)
    session.abandon(first)
    assert len(session.segments) == 1 and len(session.branches) == 2
    third = session.begin([user("a")], None, MODES["off"])
    assert third.branch is first.branch and third.ids == first.ids


def test_experts_of_a_segment_grow_with_it_and_are_cut_with_it(tokenizer):
    agent = Agent(tokenizer, tools=TOOLS)
    prompt = agent.session.begin([user("what is 1+2")], TOOLS, agent.mode)
    first = agent.ids(CALL, "<|user|>")
    read = len(prompt.ids) + len(first) - 1
    experts = np.arange(read)[:, None, None]
    message = parse(tokenizer, first, TOOLS, True).message
    agent.session.finish(prompt, first, [-1.0] * len(first), [0] * len(first), message, experts)
    again = agent.session.begin([user("what is 1+2"), message, tool("3")], TOOLS, agent.mode)
    (segment,) = agent.session.segments
    assert len(segment.experts) == read and len(again.ids) > read
    agent.session.finish(
        again,
        [7],
        [-1.0],
        [1],
        {"role": "assistant", "content": ""},
        100 + np.arange(len(again.ids))[:, None, None],
    )
    assert segment.experts[:read, 0, 0].tolist() == list(range(read)), "of the weights that read them first"
    assert segment.experts[read:, 0, 0].tolist() == [100 + n for n in range(read, len(again.ids))]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(8))
def test_random_dialogues_give_the_rows_of_training(tokenizer, mode, seed):
    """Of a model that writes what the renderer would: every turn stands in the context of training."""
    rng = random.Random(f"{mode}{seed}")
    # Of no agent's dialogue is the first message its own.
    messages = next(made for made in iter(lambda: dialogue(rng), None) if made[0]["role"] != "assistant")
    tools = MANY_TOOLS
    for index, message in enumerate(messages):
        message["content"] = (
            f"turn {index}. {message['content'] if isinstance(message['content'], str) else ''}"
        )
    session = Session(tokenizer)
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        thinking = MODES[mode]._replace(enabled=bool(message.get("reasoning_content")))
        prompt = session.begin(messages[:index], tools, thinking)
        whole = training_rows(tokenizer, messages[: index + 1], tools, mode)[-1].ids
        assert whole[: len(prompt.ids)] == prompt.ids
        answer = whole[len(prompt.ids) :]
        session.finish(prompt, answer, [-1.0] * len(answer), [0] * len(answer), message)
    rows = set()
    for row in training_rows(tokenizer, messages, tools, mode):
        end = max(place for place, trained in enumerate(row.train) if trained) + 1
        rows.add((tuple(row.ids[:end]), tuple(row.train[:end])))
    assert rows == {(tuple(segment.ids), tuple(segment.sampled)) for segment in session.segments}
