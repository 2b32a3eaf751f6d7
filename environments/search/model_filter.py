"""The three filters with a model of the recipe, which remember what they made of a question.

They remember it by all that decides it: the question with its corpus, the model, its server and how it is
sampled, the filters' prompts and limits. ``--force`` does not ask again; who puts other weights behind the
same name and address removes ``cache/questions`` from the stage's scratch.
"""

import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from environments.interface import Task
from environments.search import filters
from environments.search.chat_policy import chat_policy, connect
from environments.search.environment import Search
from environments.search.filters import Filter, agreed, path_checker, verifying_agent
from pipeline.files import write_whole
from pipeline.recipe.search import FilterModel


@dataclass(kw_only=True)
class ModelFilter(Filter):
    """``folder`` keeps the reason of each question, by all that decides it."""

    settings: FilterModel
    folder: Path

    async def reason(self, task: Task) -> str | None:
        asked = [
            self.settings.model_dump(include={"base_url", "model", "temperature", "max_tokens"}),
            task.to_record(), filters.CLOSED_BOOK_TRIES, filters.FEW_STEPS, filters.VERIFIER_TURNS,
            filters.FROM_MEMORY, filters.CHECK,
        ]  # fmt: skip
        path = self.folder / f"{hashlib.sha256(json.dumps(asked).encode()).hexdigest()}.json"
        if not path.is_file():
            write_whole(path, json.dumps(await super().reason(task)))
        return json.loads(path.read_text())


@contextlib.asynccontextmanager
async def filters_by_model(
    search: Search, settings: FilterModel | None, folder: Path
) -> AsyncIterator[Callable[[], Filter | None]]:
    """What makes filters, each with counts of its own; None where no model is set.

    Their verifying agent has to agree with the exact check on the graph, which alone can refute for certain.
    """
    if settings is None:
        yield lambda: None
        return
    folder.mkdir(parents=True, exist_ok=True)
    async with connect(settings) as client:
        policy = chat_policy(client, settings)
        verify = agreed(path_checker(search), verifying_agent(search, policy))
        yield lambda: ModelFilter(
            search, policy, policy, verify, settings.model, settings=settings, folder=folder
        )
