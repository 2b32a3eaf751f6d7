"""Crowds, clients that vanish or do not read, and a server that is killed: the others are unharmed."""

import asyncio
import json
import signal
import socket
from collections import Counter
from urllib.parse import urlsplit

import httpx
import pytest

from tests.waiting import PATIENCE, free_port, wait_until

# The most probable tokens of this model go round in a circle: no answer ends before its last token.
LONG = {"prompt": "hello", "max_tokens": 1500, "temperature": 0, "stream": True}


def raw_post(url: str, body: dict, receive_buffer: int | None = None) -> socket.socket:
    """A connection on which the request was sent and nothing is read yet."""
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect(("127.0.0.1", urlsplit(url).port))
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def idle(served) -> bool:
    return served.metric("glm5_sequences_inside") == 0 and served.metric("glm5_engine_running") == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_is_cancelled(served, stream):
    wait_until(lambda: idle(served))  # what other tests left
    left = 'glm5_sequences_total{finish="cancelled"}'
    before, sampled = served.metric(left), served.metric("glm5_sampled_tokens_total")
    connection = raw_post(served.url, {**LONG, "stream": stream, "n": 2})
    wait_until(lambda: served.metric("glm5_sequences_inside") == 2)
    if stream:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    connection.close()
    wait_until(lambda: idle(served))
    assert served.metric(left) == before + 2
    assert served.metric("glm5_sampled_tokens_total") == sampled  # counted for complete answers


def test_a_client_that_leaves_before_its_request_is_there(served):
    gone = 'glm5_requests_total{path="/v1/completions",status="499"}'
    before, lines = served.metric(gone), len(served.lines)
    connection = socket.create_connection(("127.0.0.1", urlsplit(served.url).port))
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
    connection.close()
    wait_until(lambda: served.metric(gone) == before + 1)
    assert not any("Traceback" in line for line in served.lines[lines:])


def test_a_client_that_does_not_read_is_dropped(start_server):
    served = start_server("--stall-seconds", "0.2")
    body = {**LONG, "n": 8, "logprobs": 20}  # about 12 MB; the kernel takes up to 4 for the client
    connection = raw_post(served.url, body, receive_buffer=4096)
    wait_until(lambda: served.metric("glm5_sequences_inside") == 8)
    wait_until(lambda: idle(served))
    assert served.metric('glm5_sequences_total{finish="cancelled"}') == 8
    received = b""
    while part := connection.recv(65_536):  # what the kernel had taken before the connection was cut
        received += part
    assert received.startswith(b"HTTP/1.1 200") and b"[DONE]" not in received
    assert httpx.get(f"{served.url}/health", timeout=PATIENCE).status_code == 200


def test_five_hundred_clients_at_once(start_server):
    """Each gets its own answer or is told to come again; nothing stays behind."""
    served = start_server("--max-sequences", "200", "--receive-seconds", str(PATIENCE))
    body = {"prompt": "hello", "max_tokens": 8, "temperature": 0}
    expected = httpx.post(f"{served.url}/v1/completions", json=body, timeout=PATIENCE).json()["choices"]

    async def crowd() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=PATIENCE, limits=limits) as client:
            posts = [client.post(f"{served.url}/v1/completions", json=body) for _ in range(500)]
            return await asyncio.gather(*posts)

    answers = asyncio.run(crowd())
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) <= {200, 429} and statuses[200] >= 200, statuses
    for answer in answers:
        if answer.status_code == 200:
            assert answer.json()["choices"][0]["token_ids"] == expected[0]["token_ids"]
        else:
            assert answer.json()["error"]["code"] == "busy" and answer.headers["retry-after"]
    wait_until(lambda: idle(served))


def test_abuse_leaves_another_client_unharmed(served):
    """One answer is the same while others send nonsense, leave and break off."""
    body = {"model": "speaker", "prompt": "hello", "max_tokens": 200, "temperature": 0}
    alone = httpx.post(f"{served.url}/v1/completions", json=body, timeout=PATIENCE).json()["choices"][0]

    async def among_others() -> dict:
        async with httpx.AsyncClient(base_url=served.url, timeout=PATIENCE) as client:
            answer = asyncio.create_task(client.post("/v1/completions", json=body))
            for _ in range(10):
                raw_post(served.url, LONG).close()
                await client.post("/v1/completions", content=b"{")
                await client.post("/v1/completions", json={"prompt": [10**9]})
            return (await answer).json()["choices"][0]

    assert asyncio.run(among_others()) == alone
    wait_until(lambda: idle(served))


def test_killed_under_load_and_started_again(start_server):
    port = str(free_port())
    served = start_server("--port", port)
    readers = [raw_post(served.url, LONG) for _ in range(8)]
    wait_until(lambda: served.metric("glm5_sequences_inside") == 8)
    served.process.send_signal(signal.SIGKILL)
    served.process.wait(PATIENCE)
    for reader in readers:
        reader.close()
    again = start_server("--port", port)
    assert again.url == served.url
    body = {"prompt": "hello", "max_tokens": 5}
    answer = httpx.post(f"{again.url}/v1/completions", json=body, timeout=PATIENCE)
    assert answer.status_code == 200 and idle(again)


def test_terminated_it_finishes_what_it_began(start_server):
    served = start_server("--drain-seconds", str(PATIENCE))
    connection = raw_post(served.url, {**LONG, "max_tokens": 1000, "stream": False})
    wait_until(lambda: served.metric("glm5_sequences_inside") == 1)
    served.process.send_signal(signal.SIGTERM)
    wait_until(lambda: refuses(served.url))
    answer = b""
    while part := connection.recv(65_536):
        answer += part
    choice = json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]
    assert len(choice["token_ids"]) == 1000
    served.process.wait(PATIENCE)
    assert not any("Traceback" in line for line in served.lines), served.lines


def refuses(url: str) -> bool:
    try:
        socket.create_connection(("127.0.0.1", urlsplit(url).port), PATIENCE).close()
    except ConnectionError:
        return True
    return False
