"""The checkpoints that a server offers, of which one at a time is loaded.

A request holds the loaded checkpoint until it is answered. One that names another waits for the holds to end;
then that one is loaded. Requests come in the order of their arrival, so neither can starve the other.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from model.chat.tokenizer import Tokenizer
from model.inference.async_engine import AsyncEngine
from model.inference.server.errors import ApiError


@dataclass
class Loaded:
    """A checkpoint with its engine. ``context``: tokens of prompt and answer together, at most."""

    name: str
    engine: AsyncEngine
    tokenizer: Tokenizer
    context: int

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token."""
        return max(len(self.tokenizer.token_bytes(n)) for n in range(self.tokenizer.vocab_size))


Opener = Callable[[str, Path], Awaitable[Loaded]]


class Checkpoints:
    def __init__(self, folders: dict[str, Path], opener: Opener, switch_seconds: float):
        """``folders`` by name, at least one. ``opener`` loads one of them."""
        self.folders, self.started = folders, int(time.time())
        self._opener, self._switch_seconds = opener, switch_seconds
        self._turn = asyncio.Lock()  # first come, first served
        self._free = asyncio.Event()
        self._free.set()
        self._holds = 0
        self._loaded: Loaded | None = None

    @property
    def loaded(self) -> Loaded:
        if self._loaded is None:
            raise ApiError(503, "No checkpoint is loaded")
        return self._loaded

    async def open(self, name: str) -> None:
        """Load a checkpoint and let go of the one before. On failure that one stays."""
        fresh = await self._opener(name, self.folders[name])
        before, self._loaded = self._loaded, fresh
        if before is not None:
            await before.engine.close()

    async def close(self) -> None:
        if self._loaded is not None:
            await self._loaded.engine.close()
            self._loaded = None

    def check(self, name: str) -> None:
        """Raises ``ApiError`` 404 for a checkpoint that is not offered."""
        if name not in self.folders:
            known = ", ".join(self.folders)
            raise ApiError(
                404, f"There is no model {name!r} here; there are {known}", param="model",
                code="model_not_found",
            )  # fmt: skip

    async def hold(self, name: str | None) -> Loaded:
        """The checkpoint, loaded and kept until ``release``; None for the one that is loaded when its turn
        comes. Raises ``ApiError`` 404 and 503.
        """
        if name is not None:
            self.check(name)
        async with self._turn:
            if name is not None and self.loaded.name != name:
                await self._switch(name)
            self._holds += 1
            self._free.clear()
            return self.loaded

    def release(self) -> None:
        self._holds -= 1
        if not self._holds:
            self._free.set()

    async def _switch(self, name: str) -> None:
        try:
            await asyncio.wait_for(self._free.wait(), self._switch_seconds)
        except TimeoutError:
            raise ApiError(
                503, f"{self.loaded.name} is still answering, so {name} cannot be loaded; try again",
                code="busy",
            ) from None  # fmt: skip
        try:
            await self.open(name)
        except (OSError, ValueError) as error:
            raise ApiError(503, f"{name} cannot be loaded: {error}", code="model_not_loadable") from error
