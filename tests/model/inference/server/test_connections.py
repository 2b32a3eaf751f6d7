"""The guarded connection below the app: what must arrive in time, and what may take its time."""

import asyncio
import socket
import threading
import time

import pytest
import uvicorn

from model.inference.server.connections import guarded_protocol
from model.inference.server.limits import Limits
from tests.waiting import PATIENCE

SECONDS = 1.5  # a request has to arrive in
SLOW_WORK = 2.5
ATTEMPTS = 20  # of what a client has to send in time: a busy machine may be late


async def app(scope, receive, send):
    """Reads the body, works longer than a request may take to arrive, and answers with the body's length."""
    length, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        length, more = length + len(message["body"]), message["more_body"]
    if scope["path"] == "/slow":
        await asyncio.sleep(SLOW_WORK)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
    await send({"type": "http.response.body", "body": str(length).encode()})


@pytest.fixture(scope="module")
def port():
    protocol = guarded_protocol(Limits(receive_seconds=SECONDS))
    config = uvicorn.Config(app, port=0, http=protocol, ws="none", lifespan="off", log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def assert_dropped(connection: socket.socket, part: bytes, started: float) -> None:
    """The server says nothing and closes the connection, not at once but in the end."""
    try:
        connection.sendall(part)
        left = connection.recv(1000)
    except ConnectionError:
        left = b""
    assert left == b"" and SECONDS / 2 < time.monotonic() - started < PATIENCE


HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"


@pytest.mark.parametrize("part", [b"", b"POST / HT", HEAD, HEAD + b"123"])
def test_half_a_request_is_dropped(port, part):
    started = time.monotonic()
    assert_dropped(connect(port), part, started)


def test_a_request_in_drops_is_dropped_as_well(port):
    """Each byte comes in time; the request as a whole does not."""
    started = time.monotonic()
    connection = connect(port)
    with pytest.raises(ConnectionError):
        for byte in HEAD * 100:
            connection.sendall(bytes([byte]))
            time.sleep(0.05)
    assert SECONDS / 2 < time.monotonic() - started < PATIENCE


def test_work_may_take_longer_and_the_connection_stays(port):
    for _ in range(ATTEMPTS):
        connection = connect(port)
        try:
            for _ in range(2):
                answer_of_slow_work(connection)
        except ConnectionError:  # this test itself was too late
            continue
        started = time.monotonic()
        assert_dropped(connection, HEAD, started)  # half of a third one
        return
    pytest.fail(f"{ATTEMPTS} connections did not stay")


def answer_of_slow_work(connection: socket.socket) -> None:
    connection.sendall(HEAD.replace(b"POST /", b"POST /slow") + b"12345")
    answer = b""
    while not answer.endswith(b"\r\n\r\n5"):
        if not (part := connection.recv(1000)):
            raise ConnectionError(answer)
        answer += part
