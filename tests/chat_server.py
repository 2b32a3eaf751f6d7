"""A real HTTP server on loopback that answers chat completions as a test says."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

Reply = tuple[int, str]  # status and text


def said(**values) -> Reply:
    """An answer with an assistant's message."""
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", **values}}]})


class ChatServer(ThreadingHTTPServer):
    """``reply``: of a request's body; ``asked``: headers and body of each request."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[dict, dict]] = []
        self.reply: Callable[[dict], Reply]
        self.address = f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/chat/completions"
        self.server.asked.append((dict(self.headers), body))
        status, text = self.server.reply(body)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving() -> Iterator[ChatServer]:
    server = ChatServer()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def chat_server() -> Iterator[ChatServer]:
    with serving() as server:
        yield server
