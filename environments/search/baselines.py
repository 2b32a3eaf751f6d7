"""Policies without a model, which a question has to withstand, and how well BM25 finds its evidence."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from environments.episode import answer, call_message
from environments.interface import Message, Task
from environments.search.environment import Search
from environments.search.filters import Policy
from environments.search.names import normal

ASKED = re.compile(r"Which (.+) [A-H] is meant\?")
FREQUENT = 20  # of a kind, that a guesser knows


def frequency_guesser(search: Search, rng: random.Random) -> Policy:
    """Names one of the most mentioned entities of the kind that is asked for, without looking anything up."""
    mentioned = Counter(entity for fact in search.corpus.facts for entity in (fact.subject, fact.object))
    frequent: dict[str, list[str]] = defaultdict(list)
    for entity, _ in mentioned.most_common():
        names = frequent[search.corpus.entities[entity].kind]
        if len(names) < FREQUENT:
            names.append(search.corpus.entities[entity].name)

    async def policy(messages: list[Message], tools: tuple[dict, ...]) -> Message:
        names = frequent[_asked_kind(messages)]
        return answer(None, rng.choice(names) if names else "")

    return policy


def one_search_agent(search: Search) -> Policy:
    """Searches the question once and names the first entity of the asked kind that the results mention."""
    kinds: dict[str, dict[str, str]] = defaultdict(dict)
    for entity in search.corpus.entities.values():
        kinds[entity.kind].setdefault(normal(entity.name), entity.name)

    async def policy(messages: list[Message], tools: tuple[dict, ...]) -> Message:
        if messages[-1]["role"] != "tool":
            return call_message(None, "search", query=messages[0]["content"])
        names, shown = kinds[_asked_kind(messages)], normal(messages[-1]["content"]).split()
        for start in range(len(shown)):
            for length in (4, 3, 2, 1):
                name = " ".join(shown[start : start + length])
                if name in names:
                    return answer(None, names[name])
        return answer(None, "")

    return policy


def _asked_kind(messages: list[Message]) -> str:
    match = ASKED.search(messages[0]["content"])
    return match[1] if match else ""


def evidence_recall(search: Search, tasks: Sequence[Task], count: int) -> dict[str, float]:
    """Share of the documents behind the statements among the ``count`` best that BM25 finds.

    ``question``: searching the whole question at once. ``step``: searching each statement with the names that
    are known by then, as the oracle does.
    """
    at_once = by_step = total = 0
    for task in tasks:
        evidence = search.evidence(task)
        whole = {d.id for d in search.index.search(task.messages[0]["content"], count)}
        for query, document, _ in evidence:
            total += 1
            at_once += document in whole
            by_step += document in {d.id for d in search.index.search(query, count)}
    return {"question": at_once / total, "step": by_step / total}
