"""One rollout engine over HTTP: our server, in a process of its own. Every call has a deadline."""

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

SECONDS_TO_ANSWER = 600.0
SECONDS_FOR_WEIGHTS = 120.0
SECONDS_FOR_LIFE = 20.0
SECONDS_WHILE_BUSY = 0.5


class EngineDied(RuntimeError):
    """The engine does not answer, or answers that it cannot go on. Its work can be done elsewhere."""


class ContextFull(ValueError):
    """The prompt leaves no room for an answer."""


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn. The losses assume the model itself: temperature 1 and no filter."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True)
class Answer:
    """What was sampled behind a prompt: a value a token."""

    ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: str  # "stop" or "length"
    experts: np.ndarray | None = None  # int16 (tokens read, MoE layers, K)
    reused: int = 0  # tokens of the prompt that came from the engine's prefix cache


class EngineClient:
    def __init__(self, url: str, http: aiohttp.ClientSession, experts: bool = False):
        """``experts``: ask for the experts of every token, of an engine that records them."""
        self.url, self._http, self._experts = url.rstrip("/"), http, experts

    async def sample(self, prompt: Sequence[int], sampling: Sampling, seed: int) -> Answer:
        """An answer to a prompt, drawn with ``seed``.

        Raises ``ContextFull``, ``EngineDied``, and ``ValueError`` for a request that is refused.
        """
        body = {
            "prompt": list(prompt), "max_tokens": sampling.max_new_tokens, "seed": seed,
            "temperature": sampling.temperature, "top_p": sampling.top_p, "logprobs": 0,
            "return_routed_experts": self._experts,
        }  # fmt: skip
        answer = await self._post("/v1/completions", body, SECONDS_TO_ANSWER)
        reused = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return _answer(answer["choices"][0], reused)

    async def load_weights(self, folder: Path, version: int, checksum: str) -> float:
        """Go on with the weights of ``write_buckets``; the seconds that it took. Raises ``EngineDied`` where
        it does not answer in time and ``ValueError`` where the engine refuses them, and then nothing has
        changed.
        """
        seconds = SECONDS_FOR_WEIGHTS
        body = {"folder": str(folder), "version": version, "checksum": checksum, "seconds": seconds}
        return (await self._post("/load_weights", body, seconds))["seconds"]

    async def version(self) -> int:
        """The weights' version: a sign of life. Raises ``EngineDied``."""
        return (await self._call("GET", "/health", None, SECONDS_FOR_LIFE))["version"]

    async def figures(self) -> dict[str, float]:
        """The engine's figures of /metrics, by their names without labels."""
        try:
            async with self._http.get(f"{self.url}/metrics", timeout=_limit(SECONDS_FOR_LIFE)) as response:
                lines = (await response.text()).splitlines()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineDied(f"{self.url} does not answer: {error!r}") from error
        pairs = (
            line.rsplit(" ", 1) for line in lines if line and not line.startswith("#") and "{" not in line
        )
        return {name: float(value) for name, value in pairs}

    async def _post(self, path: str, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        return await self._call("POST", path, body, seconds)

    async def _call(self, verb: str, path: str, body: dict | None, seconds: float) -> dict[str, Any]:
        where = f"{self.url}{path}"
        try:
            async with asyncio.timeout(seconds):
                response, answer = await self._unless_busy(verb, where, body, seconds)
        except TimeoutError:
            raise EngineDied(f"{where} did not answer in {seconds:.0f} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EngineDied(f"{where} does not answer: {error!r}") from error
        if response.status == 200:
            return answer
        error = answer.get("error", {})
        sentence = f"{where} answered {response.status}: {error.get('message')}"
        if error.get("code") == "context_length_exceeded":
            raise ContextFull(sentence)
        if response.status >= 500:
            raise EngineDied(sentence)
        raise ValueError(sentence)

    async def _unless_busy(
        self, verb: str, where: str, body: dict | None, seconds: float
    ) -> tuple[aiohttp.ClientResponse, dict[str, Any]]:
        """An engine with as many requests as it takes is not dead: it is asked again until it has room."""
        while True:
            response, answer = await self._exchange(verb, where, body, seconds)
            if response.status != 429:
                return response, answer
            await asyncio.sleep(SECONDS_WHILE_BUSY)

    async def _exchange(
        self, verb: str, where: str, body: dict | None, seconds: float
    ) -> tuple[aiohttp.ClientResponse, dict[str, Any]]:
        """An idle connection may be closed by the server as a request goes into it: that one is sent again,
        on a new one. All calls may be: an answer follows from its seed.
        """
        for last in (False, True):
            try:
                async with self._http.request(verb, where, json=body, timeout=_limit(seconds)) as response:
                    return response, await response.json()
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if last:
                    raise
        raise AssertionError("the second try returns or raises")


def _limit(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds)


def _answer(choice: dict[str, Any], reused: int) -> Answer:
    packed = choice.get("routed_experts")
    experts = None
    if packed is not None:
        flat = np.frombuffer(base64.b64decode(packed["data"]), packed["dtype"])
        experts = flat.reshape(packed["shape"])
    return Answer(
        choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["weight_versions"],
        choice["finish_reason"], experts, reused,
    )  # fmt: skip
