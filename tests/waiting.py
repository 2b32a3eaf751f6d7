"""Waiting for events and finding ports, so that no test depends on how busy or how slow the machine is."""

import random
import socket
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Seconds. It bounds a hang and nothing else: what is waited for comes within a few where little else runs.
# The limit of each test in pyproject.toml is longer, so that a wait ends with its own words.
PATIENCE = 900.0
# Below the ports that Linux gives to outgoing connections: none of those can take one before it is bound.
PORTS = range(15_000, 32_000)
PORTS_TRIED = 100


def wait_until(condition: Callable[[], T], what: str = "what was waited for", pause: float = 0.05) -> T:
    """The first true value of ``condition``."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not come in {PATIENCE:.0f} s"
        time.sleep(pause)
    return found


def free_port() -> int:
    """A port of this machine on which nothing listens, another one at each call."""
    for port in random.SystemRandom().sample(PORTS, PORTS_TRIED):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"{PORTS_TRIED} ports from {PORTS.start} on are all taken")
