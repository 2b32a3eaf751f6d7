"""A model behind a real HTTP server as a policy: what is asked and answered, its faults in one sentence."""

import asyncio
import json

import pytest

from environments.search import chat_policy as module
from environments.search.chat_policy import TRIES, chat_policy, connect
from environments.search.episode import is_right
from environments.search.filters import FEW_STEPS, attempt, is_known
from pipeline.errors import UserError
from pipeline.recipe.search import FilterModel
from tests.chat_server import said
from tests.waiting import free_port

ASK = [{"role": "user", "content": "x"}]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(module, "PAUSE", 0.01)


def use(address, work, **settings):
    """The result of ``work`` with a policy of the model at the address."""

    async def run():
        model = FilterModel(base_url=address, model="m", **settings)
        async with connect(model) as client:
            return await work(chat_policy(client, model))

    return asyncio.run(run())


def test_an_agent_over_http_searches_and_answers(search, chat_server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    task = search.make_task("links2", 0)
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"query": "lion"}'}}

    def reply(body):
        if body["messages"][-1]["role"] == "tool":
            return said(content=f"It is\n{task.truth['answer']}", tool_calls=None)
        return said(content=None, tool_calls=[call])

    chat_server.reply = reply
    message = use(
        chat_server.address, lambda policy: attempt(search, task, policy, FEW_STEPS), temperature=0.5
    )
    assert is_right(message, task)
    (headers, first), (_, second) = chat_server.asked
    assert headers["Authorization"] == "Bearer a-key"
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("m", 0.5, 4096)
    assert first["messages"] == list(task.messages) and first["tools"] == json.loads(json.dumps(task.tools))
    assert second["messages"][1]["tool_calls"] == [call]
    assert second["messages"][2]["role"] == "tool" and second["messages"][2]["tool_call_id"] == "c1"


def test_a_closed_book_policy_gets_no_tools(search, chat_server):
    task = search.make_task("links2", 0)
    chat_server.reply = lambda body: said(content="x")
    assert not use(chat_server.address, lambda policy: is_known(task, policy))
    assert len(chat_server.asked) == 8 and all("tools" not in body for _, body in chat_server.asked)


def test_a_busy_server_is_asked_again(chat_server):
    replies = [(503, "later"), (429, "later"), said(content="yes")]
    chat_server.reply = lambda body: replies.pop(0)
    answer = use(chat_server.address, lambda policy: policy(ASK, ()))
    assert answer == {"role": "assistant", "content": "yes"} and len(chat_server.asked) == 3


@pytest.mark.parametrize(
    ("reply", "fault", "requests"),
    [
        ((503, "busy"), f"does not answer \\(status 503, {TRIES} tries\\): start it, or leave", TRIES),
        (
            (401, "no key"),
            "refuses the request \\(status 401, .* OPENAI_API_KEY\\): 'no key'",
            1,
        ),
        ((400, "no such model"), "refuses the request \\(status 400\\)", 1),
        ((200, "not json"), "answers, but not as the OpenAI interface does: 'not json'", 1),
        ((200, '{"choices": []}'), "answers, but not as the OpenAI interface does", 1),
        ((200, "[]"), "answers, but not as the OpenAI interface does", 1),
        ((200, '{"choices": [{"message": "hi"}]}'), "answers, but not as the OpenAI interface does", 1),
    ],
)
def test_a_server_without_an_answer_is_named(chat_server, reply, fault, requests):
    chat_server.reply = lambda body: reply
    with pytest.raises(UserError, match=f"model m at {chat_server.address} {fault}") as error:
        use(chat_server.address, lambda policy: policy(ASK, ()))
    assert "\n" not in str(error.value) and len(chat_server.asked) == requests


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(UserError, match="does not answer"):
        use(f"http://127.0.0.1:{free_port()}/v1", lambda policy: policy(ASK, ()))


@pytest.mark.parametrize("key", ["a-k\u00e9y", "a-key\n"])
def test_a_key_that_cannot_be_sent_is_named(chat_server, monkeypatch, key):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(UserError, match="OPENAI_API_KEY holds what no HTTP header can") as error:
        use(chat_server.address, lambda policy: policy(ASK, ()))
    assert key.strip() not in str(error.value) and not chat_server.asked


@pytest.mark.parametrize(
    "text", ['{"error": {"code": "context_length_exceeded"}}', "the maximum context length is 4096 tokens"]
)
def test_a_dialogue_that_becomes_too_long_ends_without_a_word(search, chat_server, text):
    call = {"id": "c1", "function": {"name": "search", "arguments": '{"query": "lion"}'}}
    replies = [said(tool_calls=[call]), (400, text), (400, text)]
    chat_server.reply = lambda body: replies.pop(0)
    task = search.make_task("links2", 0)
    message = use(chat_server.address, lambda policy: attempt(search, task, policy, FEW_STEPS))
    assert message == {"role": "assistant", "content": ""} and not is_right(message, task)
    with pytest.raises(UserError, match="refuses the request"):  # no question fits this model
        use(chat_server.address, lambda policy: policy(ASK, ()))
