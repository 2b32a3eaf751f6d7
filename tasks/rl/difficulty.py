"""How often the policy solves each task before it is trained: what it always solves teaches nothing.

GLM-5 keeps tasks that its forerunner solves rarely and a stronger model can (paper section 3.2). Here the
oracle of the environment is the stronger model, and the rate is that of the checkpoint that training starts
from.
"""

import asyncio
import random
from collections.abc import Callable, Sequence

from environments.interface import Environment, Mode, Task
from model.chat.tokenizer import Tokenizer
from model.inference.decode import DecodeMode
from model.inference.engine import Engine
from model.transformer import Transformer
from tasks.rl.engines.client import Sampling
from tasks.rl.engines.local import LocalEngine
from tasks.rl.gateway.gateway import Gateway
from tasks.rl.rollout import Assignment, Limits, roll_out
from tasks.rl.router import Router
from tasks.rl.trajectory import mean_reward

Pair = tuple[Task, Mode]
LOCAL = "local"


def solve_rates(
    model: Transformer,
    tokenizer: Tokenizer,
    catalog: dict[str, Environment],
    pairs: Sequence[Pair],
    *,
    samples: int,
    max_new_tokens: int,
    seed: int,
    limits: Limits,
    at_once: int,
    decode: DecodeMode | None = None,
    tell: Callable[[int], None] = lambda done: None,
) -> list[float | None]:
    """The mean reward of ``samples`` rollouts of each pair; None where the environment always failed."""

    async def run() -> list[float | None]:
        engine = LocalEngine(Engine(model, decode=decode, max_waiting=at_once), tokenizer.stop_ids)
        router = Router()
        router.join(LOCAL)
        gateway = Gateway(tokenizer, router, {LOCAL: engine}, Sampling(max_new_tokens))
        slots, done = asyncio.Semaphore(at_once), 0

        async def rate(number: int, pair: Pair) -> float | None:
            nonlocal done
            task, mode = pair
            rng = random.Random(f"{seed}/difficulty/{number}")
            assignments = [
                Assignment(f"{number}/{sample}", str(number), task, mode, rng.randrange(2**62))
                for sample in range(samples)
            ]
            async with slots:
                environment = catalog[task.environment]
                trajectories = [await roll_out(one, environment, gateway, limits) for one in assignments]
            done += 1
            tell(done)
            return mean_reward(trajectories)

        try:
            return list(await asyncio.gather(*(rate(n, pair) for n, pair in enumerate(pairs))))
        finally:
            await engine.close()

    return asyncio.run(run())


def curriculum(pairs: Sequence[Pair], rates: Sequence[float | None]) -> tuple[list[Pair], dict[str, float]]:
    """The pairs that are not always solved, the easiest first, and what became of the others.

    Those of no success stay: a few samples miss what a group of rollouts finds, and the few tasks that were
    solved in some of them would be learnt by heart.
    """
    judged = [(pair, rate) for pair, rate in zip(pairs, rates, strict=True) if rate is not None]
    chosen = sorted((item for item in judged if item[1] < 1), key=lambda item: -item[1])
    counts = {
        "never": sum(rate == 0 for _, rate in judged),
        "sometimes": sum(0 < rate < 1 for _, rate in judged),
        "always": sum(rate == 1 for _, rate in judged),
        "unjudged": len(pairs) - len(judged),
        "mean_rate": sum(rate for _, rate in judged) / max(len(judged), 1),
    }
    return [pair for pair, _ in chosen], counts
