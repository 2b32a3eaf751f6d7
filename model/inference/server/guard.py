"""What every request passes first: API key, foreign web pages, size of the body."""

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model.inference.server.errors import ApiError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# The page and the sign of life are open: the page asks for the key.
OPEN_PATHS = ("/", "/health")
OPEN_FOLDER = "/page/"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}  # fmt: skip


class Guard:
    """Refuses a request before the app sees it, and adds security headers to every answer.

    ``loopback``: bound to this machine alone, where a web page of a stranger could still reach the server
    through the visitor's browser; its name in ``Host`` or ``Origin`` gives it away.
    """

    def __init__(self, app: ASGIApp, api_key: str | None, loopback: bool, body_bytes: int):
        self._app, self._api_key, self._loopback, self._body_bytes = app, api_key, loopback, body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = _with_headers(send)
        try:
            self._check(scope["path"], scope["method"], Headers(scope=scope))
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        await self._app(scope, _limited(receive, self._body_bytes), send)

    def _check(self, path: str, method: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if self._loopback and _name(host) not in LOOPBACK:
            raise ApiError(403, f"This server is for this machine alone, not for the host name {host!r}")
        origin = headers.get("origin")
        if method != "GET" and origin is not None and urlsplit(origin).netloc != host:
            raise ApiError(403, f"Requests from pages of {origin!r} are not allowed")
        opened = method == "GET" and (path in OPEN_PATHS or path.startswith(OPEN_FOLDER))
        if self._api_key is not None and not opened:
            given = headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self._api_key.encode()):
                raise ApiError(
                    401, "The API key is missing or wrong: send `Authorization: Bearer <key>`",
                    code="invalid_api_key",
                )  # fmt: skip
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._body_bytes:
            raise _too_large(self._body_bytes)


def _name(host: str) -> str:
    """``localhost`` of ``localhost:8000``, ``::1`` of ``[::1]:8000``."""
    return (urlsplit(f"//{host}").hostname or "") if "@" not in host else ""


def _limited(receive: Receive, most: int) -> Receive:
    """Counts a body that comes in chunks of unannounced length."""
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise _too_large(most)
        return message

    return counted


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"The body is larger than {most} bytes, the most that is read")


def _with_headers(send: Send) -> Send:
    async def add(message: Message) -> None:
        if message["type"] == "http.response.start":
            message.setdefault("headers", [])
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return add
