"""Between agents and engines: sessions of chat requests, each at one engine, every token recorded.

    gateway = Gateway(tokenizer, router, clients, sampling)
    gateway.open("rollout-7", seed=7)
    reply = await gateway.chat("rollout-7", messages, tools, MODES["interleaved"])
    session = gateway.close("rollout-7")           # its segments

An engine that fails is taken off the ring and its sessions go on elsewhere: the tokens so far are the record,
so the next engine reads them and samples the same turn with the same seed.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from model.chat.parser import parse
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import Thinking
from tasks.rl.engines.client import Answer, EngineClient, EngineDied, Sampling
from tasks.rl.gateway.session import Message, Prompt, Session
from tasks.rl.router import Router


class UnknownSession(KeyError):
    """No session of that name is open."""


@dataclass(frozen=True)
class Reply:
    message: Message
    finish: str  # "stop", "tool_calls" or "length"
    valid: bool  # the turn keeps to the chat format
    reason: str | None  # why not
    prompt_tokens: int
    tokens: int  # of the answer
    version: int  # of the weights that sampled the last token


@dataclass
class _Open:
    session: Session
    seed: int
    calls: int = 0


class Gateway:
    """For one event loop."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        router: Router,
        clients: dict[str, EngineClient],
        sampling: Sampling,
        on_death: Callable[[str, str], None] = lambda engine, reason: None,
    ):
        """``clients`` by the names that the router knows; ``on_death`` hears of an engine and why."""
        self.tokenizer, self.router, self.clients, self.sampling = tokenizer, router, clients, sampling
        self.counts: Counter = Counter()  # tokens: of prompts, of those from a prefix cache, sampled
        self._on_death = on_death
        self._open: dict[str, _Open] = {}
        self._calls: dict[str, set[asyncio.Future]] = {}  # under way, by engine

    def open(self, name: str, seed: int) -> None:
        """Begin a session; its draws follow from ``seed`` and the number of a request.

        Raises ``ValueError`` for a name that is open.
        """
        if name in self._open:
            raise ValueError(f"session {name!r} is open already")
        self._open[name] = _Open(Session(self.tokenizer), seed)

    def close(self, name: str) -> Session:
        """End a session and take what it recorded. Raises ``UnknownSession``."""
        found = self._find(name)
        del self._open[name]
        self.router.release(name)
        return found.session

    @property
    def sessions(self) -> int:
        return len(self._open)

    def lose(self, engine: str, reason: str) -> None:
        """Take an engine off the ring, and what waits for it elsewhere: it may never answer, and not die."""
        self._leave(engine, reason)
        for call in self._calls.get(engine, ()):
            call.cancel()

    async def chat(
        self,
        name: str,
        messages: Sequence[Message],
        tools: list[dict] | None,
        thinking: Thinking,
        folded: bool = False,
        most: int | None = None,
    ) -> Reply:
        """The next assistant turn. ``folded``: as for ``Session.begin``. ``most``: tokens of it, where these
        are fewer than the gateway's.

        Raises ``UnknownSession``, also where the session was closed before the answer came: what it recorded
        is its taker's by then. Raises ``ValueError`` for messages that cannot be rendered, ``ContextFull``
        where they leave no room, ``NoEngine`` once no engine is left.
        """
        found = self._find(name)
        prompt = found.session.begin(messages, tools, thinking, folded)
        number = found.calls
        found.calls += 1
        try:
            answer = await self._sample(name, found, prompt, most, _seed(found.seed, number))
            self._assert_open(name, found)
        except BaseException:
            found.session.abandon(prompt)
            found.calls -= found.calls == number + 1  # asked again it draws the same
            raise
        self.counts.update(prompt=len(prompt.ids), reused=answer.reused, sampled=len(answer.ids))
        parsed = parse(self.tokenizer, answer.ids, tools, thinking.enabled)
        found.session.finish(
            prompt, answer.ids, answer.logprobs, answer.versions, parsed.message, answer.experts
        )
        finish = "length" if answer.finish == "length" else parsed.finish
        return Reply(
            parsed.message, finish, parsed.valid, parsed.reason, len(prompt.ids), len(answer.ids),
            answer.versions[-1],
        )  # fmt: skip

    async def _sample(self, name: str, found: _Open, prompt: Prompt, most: int | None, seed: int) -> Answer:
        length = self.sampling.max_new_tokens
        sampling = replace(self.sampling, max_new_tokens=min(most or length, length))
        while True:
            self._assert_open(name, found)  # else it must not be placed again
            engine = self.router.route(name)
            client = self.clients[engine]
            try:
                answer = await self._ask(engine, client.sample(prompt.ids, sampling, seed))
            except EngineDied as error:
                if self.clients.get(engine) is client:  # else another has taken its place meanwhile
                    self._leave(engine, str(error))
            else:
                if answer is not None:
                    return answer

    async def _ask(self, engine: str, sample: Coroutine[Any, Any, Answer]) -> Answer | None:
        """None where the engine was lost before it answered."""
        call = asyncio.ensure_future(sample)
        calls = self._calls.setdefault(engine, set())
        calls.add(call)
        try:
            await asyncio.wait([call])
            return None if call.cancelled() else call.result()
        finally:
            calls.discard(call)
            call.cancel()

    def _leave(self, engine: str, reason: str) -> None:
        if engine in self.router.engines:  # another of its sessions may have found out before
            self.router.leave(engine)
            self._on_death(engine, reason)

    def _find(self, name: str) -> _Open:
        if name not in self._open:
            raise UnknownSession(f"no session {name!r} is open: it was closed, or never opened")
        return self._open[name]

    def _assert_open(self, name: str, found: _Open) -> None:
        """That a session was not closed meanwhile, even if its name was opened again."""
        if self._open.get(name) is not found:
            raise UnknownSession(f"session {name!r} was closed before its answer came")


def _seed(session: int, call: int) -> int:
    """Of a request: the same in every run, whatever runs beside it."""
    digest = hashlib.blake2b(f"{session}/{call}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % 2**62
