"""An engine inside this process, behind the calls of ``EngineClient``: rollouts without a server."""

from collections.abc import Sequence

from model.inference.async_engine import AsyncEngine
from model.inference.engine import Engine
from model.inference.request import Completion, SamplingParams
from tasks.rl.engines.client import Answer, ContextFull, Sampling


class LocalEngine:
    """``stop_ids`` end an answer. Close it, or its thread goes on."""

    def __init__(self, engine: Engine, stop_ids: frozenset[int]):
        self._context = engine.model.config.max_positions
        self._engine, self._stop_ids = AsyncEngine(engine), stop_ids

    async def sample(self, prompt: Sequence[int], sampling: Sampling, seed: int) -> Answer:
        """As ``EngineClient.sample``."""
        room = min(sampling.max_new_tokens, self._context - len(prompt))
        if room < 1:
            raise ContextFull(f"the prompt has {len(prompt)} tokens, the context {self._context}")
        params = SamplingParams(
            room, sampling.temperature, top_p=sampling.top_p, seed=seed, stop_ids=self._stop_ids
        )
        return _answer(await self._engine.submit(list(prompt), params, whole=True).done())

    async def close(self) -> None:
        await self._engine.close()


def _answer(completion: Completion) -> Answer:
    if completion.finish == "error":
        raise RuntimeError(completion.error)
    tokens = completion.tokens
    return Answer(
        completion.ids, [token.logprob for token in tokens], [token.version for token in tokens],
        completion.finish, completion.experts, completion.cached_tokens,
    )  # fmt: skip
