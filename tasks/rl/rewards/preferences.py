"""Preference pairs made here: a solution by the oracle against the same solution spoilt, and text written by
people against the policy's own continuation of it (the style anchors of paper section 3.4).

What is spoilt is known, so how well a reward model tells each kind apart is measured by kind.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from environments.interface import Environment, Message, Mode, Task, play
from model.chat.renderer import Rendered, training_rows
from model.chat.tokenizer import Tokenizer
from model.chat.tokens import STOP_TOKENS
from model.inference.generate import generate
from model.transformer import Transformer

# Of other scripts than the prompts are in.
FOREIGN = ("имя", "файл", "книга", "文件", "名字", "答案", "λόγος", "όνομα", "שלום", "שם")
REPEATS = 4
OTHERS = 4  # answers of other tasks that are tried
ANCHOR = "anchor"


@dataclass(frozen=True)
class Pair:
    """Token ids of two whole chats, the better one first. ``source``: what the pair was made from; pairs of
    one source never stand on both sides of a split.
    """

    kind: str
    source: str
    chosen: list[int]
    rejected: list[int]


Spoil = Callable[[str, random.Random], str | None]


def _repeated(text: str, rng: random.Random) -> str:
    """All of it again and again, or its last word."""
    piece = text if rng.random() < 0.5 else text.split()[-1]
    return " ".join([text, *[piece] * REPEATS])


def _truncated(text: str, rng: random.Random) -> str | None:
    words = text.split(" ")
    return " ".join(words[: rng.randrange(1, len(words))]) if len(words) > 1 else None


def _mixed(text: str, rng: random.Random) -> str:
    """Words of other scripts in the place of some, or behind it."""
    words = text.split(" ")
    for place in rng.sample(range(len(words)), (len(words) + 2) // 3):
        words[place] = rng.choice(FOREIGN)
    return " ".join(words) if len(words) > 1 else f"{text} {rng.choice(FOREIGN)}"


TEXT_SPOILT: dict[str, Spoil] = {"repeated": _repeated, "truncated": _truncated, "mixed": _mixed}
KINDS = (*TEXT_SPOILT, "off_topic", "format")


class PairMaker:
    def __init__(self, tokenizer: Tokenizer, catalog: dict[str, Environment], length: int):
        """``length``: tokens of a chat, at most."""
        self._tokenizer, self._catalog, self._length = tokenizer, catalog, length

    def pairs(self, tasks: Sequence[tuple[Task, Mode]], count: int, seed: int) -> list[Pair]:
        """Up to ``count`` pairs, the kinds in turn, tasks in a random order without end."""

        async def collect() -> list[Pair]:
            rng, found = random.Random(f"{seed}/pairs"), []
            for number in range(2 * count):  # some tasks cannot be spoilt in some ways
                if len(found) == count:
                    break
                task, mode = rng.choice(tasks)
                pair = await self._pair(KINDS[number % len(KINDS)], task, mode, tasks, rng)
                if pair is not None and max(len(pair.chosen), len(pair.rejected)) <= self._length:
                    found.append(pair)
            return found

        return asyncio.run(collect())

    async def _pair(
        self, kind: str, task: Task, mode: Mode, others: Sequence[tuple[Task, Mode]], rng: random.Random
    ) -> Pair | None:
        environment = self._catalog[task.environment]
        answers = environment.oracle(task, mode)
        messages, verdict = await play(environment, task, answers)
        if verdict.reward != 1:
            return None
        right = self._rendered(messages, task, mode)
        if kind == "format":
            return Pair(kind, task.id, right.ids, self._broken(right, rng))
        for text in self._spoilt(kind, answers[-1]["content"], task, others, rng):
            spoilt = [*answers[:-1], {**answers[-1], "content": text}]
            wrong, verdict = await play(environment, task, spoilt)
            # Foreign words may stand where a verifier allows any.
            if verdict.reward == 0 or (kind == "mixed" and verdict.reward is not None):
                ends = wrong if wrong[-1]["role"] == "assistant" else wrong[:-1]
                return Pair(kind, task.id, right.ids, self._rendered(ends, task, mode).ids)
        return None

    def _spoilt(
        self, kind: str, text: str, task: Task, others: Sequence[tuple[Task, Mode]], rng: random.Random
    ) -> Iterator[str]:
        if kind != "off_topic":
            spoilt = TEXT_SPOILT[kind](text, rng)
            if spoilt is not None:
                yield spoilt
            return
        alike = [other for other, _ in others if other.environment == task.environment and other != task]
        for other in rng.sample(alike, min(OTHERS, len(alike))):
            yield self._catalog[other.environment].oracle(other, "off")[-1]["content"]

    def _rendered(self, messages: list[Message], task: Task, mode: Mode) -> Rendered:
        """As the policy saw it when it ended its last turn."""
        return training_rows(self._tokenizer, messages, list(task.tools) or None, mode)[-1]

    def _broken(self, right: Rendered, rng: random.Random) -> list[int]:
        """Without one of the format's tokens that the policy samples, or with one of them twice."""
        names = self._tokenizer.names_by_id
        places = [
            place
            for place, (token, trained) in enumerate(zip(right.ids, right.train, strict=True))
            if trained and token in names
        ]
        place = rng.choice(places)
        keeps = names[right.ids[place]] in STOP_TOKENS or rng.random() < 0.5
        return right.ids[:place] + [right.ids[place]] * (2 if keeps else 0) + right.ids[place + 1 :]


def anchors(
    model: Transformer, tokenizer: Tokenizer, texts: Sequence[str], count: int, tokens: int, seed: int
) -> list[Pair]:
    """Up to ``count`` pairs of text by people and what the policy writes in its place, ``tokens`` each,
    behind a beginning of as many tokens.
    """
    rng = random.Random(f"{seed}/anchors")
    wholes = [ids for text in texts if len(ids := tokenizer.encode(text)) >= 3 * tokens]
    pieces = []
    for ids in rng.choices(wholes, k=count) if wholes else []:
        first = rng.randrange(len(ids) - 2 * tokens + 1)
        pieces.append((ids[first : first + tokens], ids[first + tokens : first + 2 * tokens]))
    stops = tokenizer.stop_ids
    samples = generate(
        model, [beginning for beginning, _ in pieces], max_new_tokens=tokens, stop_ids=stops,
        temperature=1.0, seed=seed,
    )  # fmt: skip
    found = []
    for (beginning, human), sample in zip(pieces, samples, strict=True):
        own = [token for token in sample.ids if token not in tokenizer.names_by_id]
        human = human[: len(own)]  # its length says nothing
        if own and own != human:
            source = tokenizer.decode(beginning)
            chats = [_go_on(tokenizer, source, tokenizer.decode(ids)) for ids in (human, own)]
            found.append(Pair(ANCHOR, source, *chats))
    return found


def _go_on(tokenizer: Tokenizer, beginning: str, text: str) -> list[int]:
    """A chat in which the answer goes on with what the user began."""
    messages = [{"role": "user", "content": beginning}, {"role": "assistant", "content": text}]
    return training_rows(tokenizer, messages, mode="off")[-1].ids


def split(pairs: Sequence[Pair], share: float, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Pairs to train on and ``share`` of the sources' to measure on."""
    sources = sorted({pair.source for pair in pairs})
    random.Random(f"{seed}/split").shuffle(sources)
    held = set(sources[: max(1, round(share * len(sources)))])
    return [p for p in pairs if p.source not in held], [p for p in pairs if p.source in held]


def counts(pairs: Sequence[Pair]) -> dict[str, int]:
    return dict(sorted(Counter(pair.kind for pair in pairs).items()))
