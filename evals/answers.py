"""How surprised a checkpoint is by right answers: bits of each token that an oracle samples in tasks.

Bits per byte of documents say little about a fine-tuned model of small size, which forgets raw text; this is
the likelihood of what it was tuned on, and the finest measure of what quantisation costs.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from environments.catalog import environments
from environments.interface import play
from evals.attempts import Item
from evals.policy import Chat, Policy, Result
from evals.suite import ratio


@dataclass(frozen=True)
class OracleAnswers:
    """Score: ``per_token``, over the dialogues. All items have one mode."""

    items: list[Item]
    name: str = "answers"

    def protocol(self) -> dict[str, Any]:
        asked = [[item.task.id, item.mode, list(item.task.messages)] for item in self.items]
        return {"version": 1, "items": asked}

    def run(self, policy: Policy) -> Result:
        chats = asyncio.run(_dialogues(self.items))
        nats = policy.chat_nats(chats, self.items[0].mode)
        bits = [float(of_chat.sum()) / math.log(2) for of_chat in nats]
        return Result([ratio("per_token", bits, [float(len(of_chat)) for of_chat in nats])], [])


async def _dialogues(items: Sequence[Item]) -> list[Chat]:
    catalog = environments()

    async def dialogue(item: Item) -> Chat:
        environment = catalog[item.task.environment]
        messages, _ = await play(environment, item.task, environment.oracle(item.task, item.mode))
        return Chat(messages, list(item.task.tools) or None)

    return list(await asyncio.gather(*map(dialogue, items)))
