"""Which questions are worth training on: the three filters of arXiv 2602.15763, section 4.2.3.

A question is dropped when a policy without tools answers it in any of eight tries, when a simple agent
answers it in a few steps, or when a verifying agent does not find the known answer right and every other
candidate wrong. Each takes any policy: an async function of messages and tools. ``baselines`` has scripted
ones that need no model, ``chat_policy`` makes one of a model.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from environments.interface import Message, Task
from environments.search.environment import Search
from environments.search.episode import is_right
from environments.search.names import normal
from environments.search.questions import Question, solve
from pipeline.errors import UserError

Policy = Callable[[list[Message], tuple[dict, ...]], Awaitable[Message]]
Verifier = Callable[[Task, str], Awaitable[bool | None]]  # None: it cannot tell

CLOSED_BOOK_TRIES = 8  # section 4.2.3
FEW_STEPS = 4  # the paper's "a few steps"; it gives no number
VERIFIER_TURNS = 30
FROM_MEMORY = "There are no tools now: answer from memory, with the name alone on the last line."
CHECK = (
    "Somebody answered this question with: {answer}\nCheck with the tools whether every statement holds "
    "for it. End with yes or no alone on the last line."
)


async def is_known(task: Task, policy: Policy, tries: int = CLOSED_BOOK_TRIES) -> bool:
    """Whether the policy is right without tools in any of the tries."""
    messages = [*task.messages, {"role": "user", "content": FROM_MEMORY}]
    for _ in range(tries):
        if is_right(await policy(list(messages), ()), task):
            return True
    return False


async def attempt(search: Search, task: Task, policy: Policy, turns: int) -> Message | None:
    """The policy's answer within so many assistant messages; None where it gives none. Raises ``UserError``
    where its sandbox fails, which says nothing of the question.
    """
    episode = search.episode()
    try:
        messages = await episode.reset(task)
        for _ in range(turns):
            message = await policy(list(messages), task.tools)
            step = await episode.step(message)
            if step.done:
                verdict = await episode.verify()
                if verdict.reward is None:
                    raise UserError(f"question {task.id} could not be filtered: {verdict.reason}")
                return None if message.get("tool_calls") else message
            messages = [*messages, message, *step.messages]
        return None
    finally:
        await episode.close()


def path_checker(search: Search) -> Verifier:
    """The verifier that needs no model: it tries every assignment of the question on the graph."""

    async def verify(task: Task, answer: str) -> bool | None:
        found = solve(search.graph, Question.from_record(task.truth["question"]))
        return any(normal(answer) in search.names.accepted[entity] for entity in found)

    return verify


def verifying_agent(search: Search, policy: Policy, turns: int = VERIFIER_TURNS) -> Verifier:
    """An agent with the tools that is asked whether an answer fits."""

    async def verify(task: Task, answer: str) -> bool | None:
        asked = {"role": "user", "content": CHECK.format(answer=answer)}
        record = {**task.to_record(), "messages": (*task.messages, asked)}
        message = await attempt(search, Task.from_record(record), policy, turns)
        lines = str((message or {}).get("content") or "").split("\n")
        return {"yes": True, "no": False}.get(normal(lines[-1]))

    return verify


def agreed(*verifiers: Verifier) -> Verifier:
    """What all of them say; nothing where they differ or one cannot tell."""

    async def verify(task: Task, answer: str) -> bool | None:
        said = {await verifier(task, answer) for verifier in verifiers}
        return said.pop() if len(said) == 1 else None

    return verify


async def fault_of(task: Task, candidates: Sequence[str], verify: Verifier) -> str | None:
    """Why a question is not sound, looked at from both ends: the known answer and other candidates."""
    if await verify(task, task.truth["answer"]) is not True:
        return "the known answer is not confirmed"
    for candidate in candidates:
        if normal(candidate) not in task.truth["answers"] and await verify(task, candidate) is not False:
            return "another answer is not refuted"
    return None


@dataclass
class Filter:
    """All three in turn, with a count of what they dropped. What the agent answered is the candidate.

    ``by``: whose policies they are, where the counts shall say it.
    """

    search: Search
    closed_book: Policy
    agent: Policy
    verify: Verifier
    by: str = ""
    dropped: Counter[str] = field(default_factory=Counter)

    async def keeps(self, task: Task) -> bool:
        reason = await self.reason(task)
        if reason is not None:
            self.dropped[f"{reason} by {self.by}" if self.by else reason] += 1
        return reason is None

    async def reason(self, task: Task) -> str | None:
        """Why a question is dropped; None for one that is kept."""
        if await is_known(task, self.closed_book):
            return "answered without tools"
        message = await attempt(self.search, task, self.agent, FEW_STEPS)
        if message is not None and is_right(message, task):
            return "answered in a few steps"
        candidates = [answer] if (answer := last_line(message)) else []
        return await fault_of(task, candidates, self.verify)


def last_line(message: Message | None) -> str:
    lines = str((message or {}).get("content") or "").strip().split("\n")
    return lines[-1].strip()
