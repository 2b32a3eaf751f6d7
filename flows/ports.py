"""Ports of this machine that a server of this clone may take."""

import contextlib
import socket

from pipeline.errors import UserError

HOST = "127.0.0.1"
PORT = 4200  # Prefect's own
PORTS_TRIED = 20


def free_port(wanted: int | None) -> int:
    """``wanted``, without a wish the first free one from Prefect's own on. Raises ``UserError`` where it is
    taken, or all are.
    """
    for port in [wanted] if wanted is not None else range(PORT, PORT + PORTS_TRIED):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((HOST, port))
                return port
    another = "choose another with --port (make: PORT=...)"
    if wanted is not None:
        raise UserError(f"port {wanted} of {HOST} is taken by another program: end it, or {another}")
    raise UserError(f"ports {PORT} to {PORT + PORTS_TRIED - 1} of {HOST} are all taken: {another}")
