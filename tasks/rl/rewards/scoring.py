"""A reward model at work beside many rollouts: those that wait are read in one pass."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tasks.rl.rewards.reward_model import RewardModel
from tasks.training.ranks import pick_device

AT_ONCE = 64  # chats of a pass


class Scorer:
    """For one event loop."""

    def __init__(self, folder: Path):
        self._model = RewardModel.load(folder, pick_device())
        self._waiting: list[tuple[Sequence[int], asyncio.Future[float]]] = []
        self._turn = asyncio.Lock()

    async def reward(self, chat: Sequence[int]) -> float:
        """The model's reward of a chat, given as token ids."""
        answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append((chat, answer))
        async with self._turn:
            if not answer.done():
                batch = self._waiting[:AT_ONCE]  # its own chat is the first: turns are taken in order
                rewards = await asyncio.to_thread(self._model.rewards, [chat for chat, _ in batch])
                del self._waiting[: len(batch)]
                for (_, waiting), reward in zip(batch, rewards, strict=True):
                    if not waiting.done():
                        waiting.set_result(reward)
        return await answer
