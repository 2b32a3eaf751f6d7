"""Who reads what in the next pass: running requests first, in the order of their admission, then waiting
ones.

Every running request that is caught up reads its last token (and the drafts behind it); prompts are read in
chunks from what the budget leaves, in the same pass. Where passes without prompts are the quick ones
(``decode.py``), prompts wait for one another, so that few passes read them all.

When pages are short, unused prefixes go first; then the request admitted last gives up its pages and waits at
the front of the queue, to be read again later. Its draws do not depend on that, so its tokens do not either.
"""

from collections import deque
from dataclasses import dataclass
from typing import Self

from model.attention.cache import Chunk
from model.inference.pages import Pages
from model.inference.prefix import PrefixTree
from model.inference.request import QueueFull
from model.inference.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Reading:
    """What one sequence reads in a pass: ``count`` known tokens from ``first`` on, then its drafts."""

    sequence: Sequence
    first: int
    count: int
    drafts: tuple[int, ...]

    @classmethod
    def of(cls, sequence: Sequence, count: int) -> Self:
        return cls(sequence, sequence.read, count, tuple(sequence.drafts))

    @property
    def total(self) -> int:
        return self.count + len(self.drafts)

    @property
    def chunk(self) -> Chunk:
        return Chunk(self.sequence.pages, self.first, self.total)

    @property
    def ids(self) -> list[int]:
        return [*self.sequence.ids[self.first : self.first + self.count], *self.drafts]


class Scheduler:
    def __init__(
        self, *, pages: int, page_size: int, max_running: int, max_waiting: int, prefill_chunk: int,
        draft_steps: int, version: int, prompts_every: int = 1,
    ):  # fmt: skip
        """``prompts_every``: of so many passes one reads prompts, while any request is caught up and the last
        that did left none for want of budget.
        """
        # Slots behind the known tokens: the token sampled next, and drafts of this pass and of the next.
        self.page_size, self._drafts, self._ahead = page_size, draft_steps > 0, 2 * draft_steps + 1
        self._max_running, self._max_waiting, self._budget = max_running, max_waiting, prefill_chunk
        self._prompts_every, self._without_prompts, self._budget_spent = prompts_every, 0, False
        self.pages = Pages(pages)
        self.prefix = PrefixTree(self.pages, page_size, version)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = self.cached_tokens = 0

    def enqueue(self, sequence: Sequence) -> None:
        """Raises ``QueueFull``, and ``ValueError`` for a request that all pages together cannot hold."""
        most = len(sequence.ids) + sequence.params.max_new_tokens + 2 * self._ahead
        if self._pages_for(most) > self.pages.total:
            raise ValueError(
                f"the request needs {most} tokens of cache and the engine has "
                f"{self.pages.total * self.page_size}: shorten it, or give the engine more pages"
            )
        if len(self.waiting) >= self._max_waiting:
            raise QueueFull(f"{len(self.waiting)} requests are waiting, as many as the engine takes")
        self.waiting.append(sequence)

    def plan(self) -> list[Reading]:
        """The next pass: readings with the longest last, all with their pages."""
        reads_prompts = self._reads_prompts()
        readings, budget = [], self._budget if reads_prompts else 0
        for sequence in list(self.running):
            if not sequence.pages:
                continue  # it gave them up for an older one, and waits again
            unread = sequence.unread
            count = 1 if unread == 1 else min(unread, budget)
            if count and self._make_room(sequence, count):
                budget -= count if unread > 1 else 0
                readings.append(self._reading(sequence, count))
        while self.waiting and budget > 0 and len(self.running) < self._max_running:
            sequence = self.waiting[0]
            if not self._admit(sequence):
                break
            self.running.append(self.waiting.popleft())
            reading = self._reading(sequence, min(sequence.unread, budget))
            budget -= reading.count
            readings.append(reading)
        self._budget_spent = reads_prompts and not budget
        return sorted(readings, key=lambda reading: reading.total)

    def share(self, sequence: Sequence, full: int) -> None:
        """Put the pages that hold the first ``full`` tokens into the prefix tree."""
        size = self.page_size
        for number in range(len(sequence.nodes), full // size):
            key = tuple(sequence.ids[number * size : (number + 1) * size])
            parent = sequence.nodes[-1] if sequence.nodes else None
            node = self.prefix.insert(parent, key, sequence.pages[number])
            sequence.nodes.append(node)
            sequence.pages[number] = node.page

    def remove(self, sequence: Sequence) -> None:
        """Take a running request out and give its pages back."""
        self.running.remove(sequence)
        self._release(sequence)

    def restart(self, version: int) -> None:
        """All running requests wait again, first in the queue, and all prefixes are forgotten."""
        for sequence in reversed(self.running):
            self._release(sequence)
            self.waiting.appendleft(sequence)
        self.running.clear()
        self.prefix.clear(version)

    def _reads_prompts(self) -> bool:
        caught_up = any(sequence.unread == 1 for sequence in self.running)
        few = self._without_prompts + 1 < self._prompts_every
        wait = caught_up and few and not self._budget_spent
        self._without_prompts = self._without_prompts + 1 if wait else 0
        return not wait

    def _reading(self, sequence: Sequence, count: int) -> Reading:
        """Plan a reading, and share the pages that it will fill: in every layer a pass stores all its latents
        before it reads any, so who is admitted behind this one can already do without them.
        """
        if sequence.samples or not self._drafts:  # else the MTP block does not read them
            self.share(sequence, sequence.read + count)
        return Reading.of(sequence, count)

    def _admit(self, sequence: Sequence) -> bool:
        """Give a waiting request the pages of all its tokens, known beginnings from the prefix tree."""
        if not sequence.wants_prompt:  # else every token must be read for its log-probability
            sequence.nodes = self.prefix.lookup(sequence.ids, (len(sequence.ids) - 1) // self.page_size)
        needed = self._pages_for(len(sequence.ids) + self._ahead) - len(sequence.nodes)
        if needed > self.pages.free + self.prefix.unused:
            self.prefix.release(sequence.nodes)
            sequence.nodes = []
            return False
        self.prefix.evict(needed)
        sequence.pages = [node.page for node in sequence.nodes] + self.pages.take(needed)
        sequence.read = sequence.drafted = len(sequence.nodes) * self.page_size
        sequence.drafted = max(sequence.drafted, 1)
        self.cached_tokens += sequence.read
        if not sequence.matched:
            sequence.matched = True
            sequence.completion.cached_tokens = min(sequence.read, sequence.prompt_length)
        return True

    def _make_room(self, sequence: Sequence, count: int) -> bool:
        """Pages for ``count`` more tokens, drafts and the tokens behind; False where it had to give up."""
        needed = self._pages_for(sequence.read + count + self._ahead) - len(sequence.pages)
        if needed <= 0:
            return True
        self.prefix.evict(needed)
        while self.pages.free < needed:
            youngest = self.running[-1]
            self.remove(youngest)
            self.waiting.appendleft(youngest)
            self.preemptions += 1
            if youngest is sequence:
                return False
            self.prefix.evict(needed)
        sequence.pages += self.pages.take(needed)
        return True

    def _release(self, sequence: Sequence) -> None:
        self.pages.give_back(sequence.pages[len(sequence.nodes) :])
        self.prefix.release(sequence.nodes)
        sequence.forget_cache()

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)
