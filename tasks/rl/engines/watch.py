"""The rollout worker's eye on the engines: who is on the ring, by ``engines.json`` and by heartbeats.

An engine that gives no sign of life is taken off the ring, dead or hanging, and what waits for it goes on
elsewhere; it comes back when it answers again, or when the file names a new one in its place.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from tasks.rl.engines.client import EngineClient, EngineDied
from tasks.rl.gateway.gateway import Gateway

SECONDS_BETWEEN_BEATS = 2.0


class Watch:
    def __init__(self, file: Path, gateway: Gateway, client: Callable[[str], EngineClient]):
        """``client`` of an address."""
        self._file, self._gateway, self._client = file, gateway, client
        self._seen: tuple[int, int] = (0, 0)
        self._told: dict[str, str] = {}
        self._asked: set[str] = set()

    def look(self) -> None:
        """Read the file where it has changed."""
        try:
            status = self._file.stat()
        except FileNotFoundError:
            return
        if (status.st_mtime_ns, status.st_ino) == self._seen:
            return
        self._seen = status.st_mtime_ns, status.st_ino
        self._told = json.loads(self._file.read_text())["engines"]
        clients = self._gateway.clients
        for name in set(self._gateway.router.engines) - set(self._told):
            self._gateway.lose(name, "the trainer has ended it")
        for name, url in self._told.items():
            if name not in clients or clients[name].url != url:
                self._gateway.lose(name, "the trainer has started it anew")
                clients[name] = self._client(url)
                self._gateway.router.join(name)

    async def listen(self) -> None:
        """For ever: ask each engine for a sign of life; one that is slow to answer delays no other."""
        async with asyncio.TaskGroup() as beats:
            while True:
                for name in self._told.keys() - self._asked:
                    self._asked.add(name)
                    beats.create_task(self._beat(name))
                await asyncio.sleep(SECONDS_BETWEEN_BEATS)

    async def _beat(self, name: str) -> None:
        client, fault = self._gateway.clients[name], None
        try:
            await client.version()
        except (EngineDied, ValueError) as error:
            fault = str(error)
        self._asked.discard(name)
        if self._gateway.clients.get(name) is not client or name not in self._told:
            return  # another has taken its place meanwhile
        if fault is None:
            self._gateway.router.join(name)
        else:
            self._gateway.lose(name, fault)
