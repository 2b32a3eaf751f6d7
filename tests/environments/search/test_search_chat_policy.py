"""A chat-completions server as a policy: what is sent, what comes back, and its faults in one sentence."""

import asyncio
import json

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from environments.search.chat_policy import chat_policy
from environments.search.filters import is_easy, is_known
from pipeline.errors import UserError


def served(reply, use):
    """The result of ``use`` with a client of an application that answers with ``reply(request body)``."""
    seen = []

    async def complete(request):
        seen.append(await request.json())
        return reply(seen[-1])

    async def run():
        app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://model.test/v1/") as client:
            return await use(client)

    return asyncio.run(run()), seen


def message(**values):
    return JSONResponse({"choices": [{"message": {"role": "assistant", **values}}]})


def test_an_agent_over_http_searches_and_answers(search):
    task = search.make_task("links2", 0)
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"query": "lion"}'}}

    def reply(body):
        if body["messages"][-1]["role"] == "tool":
            return message(content=f"It is\n{task.truth['answer']}", tool_calls=None)
        return message(content=None, tool_calls=[call])

    easy, seen = served(
        reply, lambda client: is_easy(search, task, chat_policy(client, "m", temperature=0.5))
    )
    assert easy
    first, second = seen
    assert first["model"] == "m" and first["temperature"] == 0.5
    assert first["messages"] == list(task.messages) and first["tools"] == json.loads(json.dumps(task.tools))
    assert second["messages"][1]["tool_calls"] == [call]
    assert second["messages"][2]["role"] == "tool" and second["messages"][2]["tool_call_id"] == "c1"


def test_a_closed_book_policy_gets_no_tools(search):
    task = search.make_task("links2", 0)
    known, seen = served(
        lambda body: message(content="x"), lambda client: is_known(task, chat_policy(client, "m"))
    )
    assert not known and len(seen) == 8 and all("tools" not in body for body in seen)


@pytest.mark.parametrize(
    "reply",
    [
        lambda body: PlainTextResponse("busy", status_code=503),
        lambda body: PlainTextResponse("not json"),
        lambda body: JSONResponse({"choices": []}),
        lambda body: JSONResponse([]),
        lambda body: JSONResponse({"choices": [{"message": "hi"}]}),
    ],
)
def test_a_server_without_an_answer_is_named(reply):
    async def use(client):
        with pytest.raises(UserError, match=r"model m at http://model\.test/v1/ gave no"):
            await chat_policy(client, "m")([{"role": "user", "content": "x"}], ())

    served(reply, use)
