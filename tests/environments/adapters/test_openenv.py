"""The HTTP face of the environments, over a real server and a real web socket."""

import asyncio
import contextlib
import json
import threading

import httpx
import pytest
import uvicorn
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from environments.adapters.openenv import make_app
from environments.catalog import environments, select
from tests.waiting import free_port, wait_until

CATALOG = select(environments(), ["arithmetic", "tools"])


@contextlib.contextmanager
def serving(app):
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), "the server does not start")
        yield f"127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def client():
    with serving(make_app(CATALOG)) as address, httpx.Client(base_url=f"http://{address}") as found:
        yield found


def oracle(task_id, seed, environment="tools", family="chain"):
    task = CATALOG[environment].make_task(family, seed)
    assert task.id == task_id
    return CATALOG[environment].oracle(task, "interleaved")


def test_the_oracle_earns_the_reward(client):
    begun = client.post("/reset", json={"environment": "tools", "family": "chain", "seed": 4}).json()
    assert begun["observation"]["tools"][0]["function"]["name"] == "calc" and begun["reward"] is None
    for answer in oracle(begun["info"]["task"], 4):
        taken = client.post("/step", json={"episode_id": begun["episode_id"], "action": answer}).json()
    assert taken["done"] and taken["reward"] == 1.0
    state = client.get("/state", params={"episode_id": begun["episode_id"]}).json()
    assert state["step_count"] == 3 and state["done"]


def test_what_is_served_is_told(client):
    assert client.get("/health").json() == {"status": "healthy"}
    assert client.get("/metadata").json()["tools"]["evaluation_only"] == ["chain3"]
    assert client.get("/schema").json()["action"]["required"] == ["episode_id", "action"]
    default = client.post("/reset", json={}).json()
    assert default["info"]["task"].startswith("arithmetic/add2/")


@pytest.mark.parametrize(
    "path, body, status, sentence",
    [
        ("/reset", {"environment": "nothing"}, 404, "no environment 'nothing' (known: arithmetic, tools)"),
        ("/reset", {"family": "add9"}, 422, "no family 'add9'"),
        ("/reset", {"family": "add4"}, 422, "kept for evaluation"),
        ("/reset", {"sed": 1}, 422, "Extra inputs"),
        ("/step", {"episode_id": "lost", "action": {}}, 404, "no episode 'lost'"),
    ],
)
def test_bad_requests_are_explained(client, path, body, status, sentence):
    answer = client.post(path, json=body)
    assert answer.status_code == status and sentence in answer.text


def test_an_episode_takes_assistant_messages_and_ends_once(client):
    begun = client.post("/reset", json={"seed": 2}).json()
    step = {"episode_id": begun["episode_id"], "action": {"role": "user", "content": "1"}}
    assert client.post("/step", json=step).status_code == 422
    step["action"]["role"] = "assistant"
    assert client.post("/step", json=step).json()["done"]
    assert client.post("/step", json=step).status_code == 409


def test_an_idle_episode_is_closed():
    with (
        serving(make_app(CATALOG, idle_seconds=0.0)) as address,
        httpx.Client(base_url=f"http://{address}") as client,
    ):
        first = client.post("/reset", json={}).json()["episode_id"]
        client.post("/reset", json={})
        assert client.get("/state", params={"episode_id": first}).status_code == 404


def test_a_web_socket_holds_one_episode(client):
    address = str(client.base_url).replace("http", "ws")

    async def talk():
        async with connect(f"{address}/ws") as socket:

            async def ask(message):
                await socket.send(message if isinstance(message, str) else json.dumps(message))
                return json.loads(await socket.recv())

            begun = await ask(
                {"type": "reset", "data": {"environment": "tools", "family": "calc", "seed": 9}}
            )
            assert begun["type"] == "reset"
            for answer in oracle(begun["data"]["info"]["task"], 9, family="calc"):
                taken = await ask({"type": "step", "data": {"action": answer}})
            assert taken["data"]["reward"] == 1.0
            assert (await ask({"type": "state"}))["data"]["step_count"] == 2
            for nonsense in ("not json", "[]", {"type": "fly"}, {"type": "step", "data": {"action": 3}}):
                assert (await ask(nonsense))["type"] == "error"
            await socket.send(json.dumps({"type": "close"}))

    asyncio.run(talk())


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
def test_pages_of_other_hosts_are_refused(client, headers):
    assert client.post("/reset", json={}, headers=headers).status_code == 403
    assert client.get("/health", headers={"Origin": str(client.base_url)}).status_code == 200

    async def talk():
        address = str(client.base_url).replace("http", "ws")
        with pytest.raises(InvalidStatus, match="403"):
            async with connect(f"{address}/ws", additional_headers={"Origin": "http://evil.example"}):
                pass

    asyncio.run(talk())
