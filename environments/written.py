"""Episodes of one answer in free words: many answers are right, so a function judges the whole text."""

import re
from collections.abc import Callable

from environments.interface import Episode, Message, Step, Task, Verdict

Judge = Callable[[Task, str], Verdict]


class WrittenEpisode(Episode):
    """Takes one assistant message and has ``judge`` look at its text, which is empty where there is none."""

    def __init__(self, judge: Judge):
        self._judge = judge

    async def reset(self, task: Task) -> list[Message]:
        self._task = task
        self._verdict: Verdict | None = None
        return list(task.messages)

    async def step(self, message: Message) -> Step:
        if self._verdict is not None:
            raise RuntimeError("the episode is over: reset it before another step")
        content = message.get("content")
        if message.get("tool_calls"):
            self._verdict = Verdict(0.0, "there are no tools here")
        else:
            self._verdict = self._judge(self._task, content.strip() if isinstance(content, str) else "")
        return Step(done=True)

    async def verify(self) -> Verdict:
        return self._verdict or Verdict(0.0, "the episode ended before the answer")


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return [word.casefold() for word in re.findall(r"[^\W_]+(?:['’-][^\W_]+)*", text)]


def within(phrase: str, text: str) -> bool:
    """Whether the words of ``phrase`` stand in ``text`` one after another."""
    wanted, words = words_of(phrase), words_of(text)
    return any(words[at : at + len(wanted)] == wanted for at in range(len(words) - len(wanted) + 1))
