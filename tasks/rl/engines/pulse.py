"""The trainer's eye on its engines: one that hangs is no dead process, but gives no sign of life either."""

import http.client
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

SECONDS_BETWEEN_BEATS = 3.0
SECONDS_FOR_LIFE = 20.0
MOST_MISSED = 3  # beats in a row; a time would count that of a suspended machine


class Pulse:
    """Asks engines for a sign of life, in a thread of its own, from ``start`` to ``stop``."""

    def __init__(self, addresses: Callable[[], Mapping[str, str]]):
        """``addresses`` of those that should live, by name."""
        self._addresses = addresses
        self._missed: Counter[str] = Counter()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="pulse", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def is_silent(self, name: str) -> bool:
        return self._missed[name] >= MOST_MISSED

    def begin_anew(self, name: str) -> None:
        """The engine was started again: what it missed before counts no more."""
        self._missed[name] = 0

    def _listen(self) -> None:
        while not self._ending.wait(SECONDS_BETWEEN_BEATS):
            for name, address in self._addresses().items():
                self._missed[name] = 0 if _lives(address) else self._missed[name] + 1


def _lives(address: str) -> bool:
    where = urlsplit(address)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=SECONDS_FOR_LIFE)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
