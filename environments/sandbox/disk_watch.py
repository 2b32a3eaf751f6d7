"""A bound on what sandboxes write, for engines whose storage has no quotas.

Twice a second the engine counts what each container has written; one that is over its limit loses all its
processes, and again only once it has grown further, so that files can be removed. What comes in that half
second goes beyond the limit, and files that are deleted while they are open do not count until their process
ends: a storage driver with quotas has neither gap.
"""

import threading

import docker
import docker.errors
import requests

PERIOD = 0.5  # seconds


class DiskWatch:
    """One thread, which lives while there is something to watch."""

    def __init__(self, api: docker.APIClient) -> None:
        self._api = api
        self._limits: dict[str, int] = {}  # bytes by container
        self._full: dict[str, int | None] = {}  # bytes at the first count after it was stopped
        self._ended: set[str] = set()  # killed here and not started again
        self._lock = threading.Lock()
        self._killing = threading.Lock()
        self._stop = threading.Event()

    def add(self, identity: str, disk_mb: int) -> None:
        with self._lock:
            self._limits[identity] = disk_mb * 2**20
            if len(self._limits) == 1:
                self._stop = threading.Event()
                threading.Thread(target=self._run, args=(self._stop,), daemon=True, name="disk-watch").start()

    def remove(self, identity: str) -> None:
        with self._lock:
            self._full.pop(identity, None)
            if self._limits.pop(identity, None) is not None and not self._limits:
                self._stop.set()

    def ended(self, identity: str) -> bool:
        """Whether its processes were ended here: the engine itself hears of their end somewhat later."""
        return identity in self._ended

    def forget(self, identity: str) -> None:
        """Its first process is about to be started again. A kill under way has its effect before."""
        with self._killing:
            self._ended.discard(identity)

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(PERIOD):
            try:
                self.check()
            except (docker.errors.DockerException, requests.RequestException, OSError):
                pass  # the next command of a sandbox says that the engine is gone

    def check(self) -> list[str]:
        """End the processes of those over their limits; returns them."""
        with self._lock:
            limits = dict(self._limits)
            self._ended &= limits.keys()
        if not limits:
            return []
        running = self._api.containers(size=True, filters={"id": list(limits)})
        sizes = {container["Id"]: container.get("SizeRw") or 0 for container in running}
        full = []
        for identity, size in sizes.items():
            if size <= limits.get(identity, size):
                self._full.pop(identity, None)
            elif identity in self._full and self._full[identity] is None:
                self._full[identity] = size
            elif size > self._full.get(identity, 0):
                self._full[identity] = None
                full.append(identity)
        for identity in full:
            with self._killing:
                self._ended.add(identity)  # before the first sign of it
                try:
                    self._api.kill(identity)
                except docker.errors.APIError:
                    pass  # it has just ended
        return full
