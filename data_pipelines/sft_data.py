"""Stage ``sft_data``: chats for fine-tuning, from the oracles of the environments.

    python -m data_pipelines.sft_data --recipe tiny

Every chat is played through its environment and written only if the environment rewards it.
``chats.jsonl`` holds, a line a chat: ``id``, ``environment``, ``family``, ``mode``, ``messages``,
``tools`` where there are any. Some dialogues open with a wrong turn that is answered (``"train": false``:
it stays in the context but pays no loss, paper section 3.1) and some answer one later turn without
thinking.
"""

import asyncio
import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data_pipelines.documents import python_texts
from environments.catalog import environments, find_family
from environments.interface import MODES, Environment, Message, Mode, Task, is_heldout, play
from environments.known import refuse_unknown
from pipeline.errors import UserError
from pipeline.recipe.data import SftDataSection
from pipeline.stage import Context, run_stage

ROUND = 256  # tasks between two reports of progress
MAX_FAILED = 0.05  # share of a family's chats that its environment may fail to judge
PATIENCE = 3  # tasks drawn for each chat wanted, at most
SEEDS_APART = 10_000_000  # between two data seeds


@dataclass(frozen=True)
class Chat:
    task: Task
    mode: Mode
    messages: list[Message]
    wrong_turn: bool
    off_turn: bool

    def digest(self) -> str:
        """Of what a model would see: two modes of a dialogue without a difference are one chat."""
        content = json.dumps([self.messages, self.task.tools], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def record(self) -> dict:
        task = self.task
        tools = {"tools": list(task.tools)} if task.tools else {}
        return {
            "id": self.digest(), "environment": task.environment, "family": task.family, "mode": self.mode,
            "messages": self.messages, **tools,
        }  # fmt: skip


def run(context: Context) -> dict[str, float]:
    """Play, verify, de-duplicate and write the chats of the recipe."""
    section: SftDataSection = context.section
    catalog = environments(python_texts(context.inputs["curate"] / "documents"))
    refuse_unknown(catalog, "sft_data.families", section.families)
    wanted = shares(section)
    rows, chats, seen = [], [], set()
    for (name, mode), count in wanted.items():
        environment, family = find_family(catalog, name)
        maker = Maker(environment, family, mode, section, context.recipe.data_seed)
        row = Counter()
        for chat in maker.chats(count, seen, row):
            chats.append(chat)
            if len(chats) % ROUND == 0:
                context.progress.update("play", len(chats), section.chats, "chat", name)
        rows.append({"family": name, "mode": mode, "wanted": count, **row})
        if row["environment_failed"] > MAX_FAILED * max(count, ROUND):
            raise UserError(
                f"{name} could not judge {row['environment_failed']} of its own solutions ({maker.failure}): "
                "repair its sandbox or leave the family out of sft_data.families"
            )
        if count and not row["written"]:
            raise UserError(f"{name} gave no verified chat in mode {mode}: leave it out of sft_data.families")
    random.Random(context.recipe.data_seed).shuffle(chats)
    _write(context.out, chats, rows)
    context.progress.update("play", len(chats), len(chats), "chat")
    return _metrics(chats, rows)


def shares(section: SftDataSection) -> dict[tuple[str, Mode], int]:
    """Chats of each family and mode by their weights, rounded so that they add up to ``section.chats``."""
    weights = {
        (name, mode): weight * section.modes.get(mode, 0.0)
        for name, weight in section.families.items()
        for mode in MODES
        if weight * section.modes.get(mode, 0.0) > 0
    }
    total = sum(weights.values())
    if not total:
        raise UserError("sft_data: all weights of families or of modes are 0, so there is nothing to write")
    exact = {key: section.chats * weight / total for key, weight in weights.items()}
    counts = {key: int(value) for key, value in exact.items()}
    largest_rest = sorted(exact, key=lambda key: counts[key] - exact[key])
    for key in largest_rest[: section.chats - sum(counts.values())]:
        counts[key] += 1
    return counts


class Maker:
    """Chats of one family in one mode, from seeds that no other data seed uses."""

    def __init__(
        self, environment: Environment, family: str, mode: Mode, section: SftDataSection, data_seed: int
    ):
        self.environment, self.family, self.mode, self.section = environment, family, mode, section
        self._seed = data_seed * SEEDS_APART + MODES.index(mode) * SEEDS_APART // len(MODES)
        self.failure = ""

    def chats(self, count: int, seen: set[str], row: Counter) -> Iterator[Chat]:
        """Up to ``count`` verified chats that are not in ``seen``; ``row`` counts what was dropped."""
        left = PATIENCE * count
        while row["written"] < count and left > 0:
            size = min(ROUND, left, count - row["written"])
            left -= size
            for chat in asyncio.run(self._round(size, row)):
                if chat.digest() in seen:
                    row["duplicate"] += 1
                    continue
                seen.add(chat.digest())
                row.update(written=1, wrong_turns=int(chat.wrong_turn), off_turns=int(chat.off_turn))
                yield chat

    async def _round(self, size: int, row: Counter) -> list[Chat]:
        seeds = range(self._seed, self._seed + size)
        self._seed += size
        found = await asyncio.gather(*(self._chat(seed, row) for seed in seeds))
        return [chat for chat in found if chat is not None]

    async def _chat(self, seed: int, row: Counter) -> Chat | None:
        row["drawn"] += 1
        task = self.environment.make_task(self.family, seed)
        rng = random.Random(f"{task.id}/{self.mode}")
        answers = self.environment.oracle(task, self.mode)
        off_turn = rng.random() < self.section.off_turns and switch_off(answers, self.mode, rng)
        mistake = None
        if rng.random() < self.section.wrong_turns:
            mistake = self.environment.mistake(task, self.mode, rng)
            if mistake is not None:
                answers = [{**mistake, "train": False}, *answers]
        messages, verdict = await play(self.environment, task, answers)
        if verdict.reward is None:
            self.failure = verdict.reason
            row["environment_failed"] += 1
        elif not (verdict.reward > 0 if mistake else verdict.reward == 1):
            row["unverified"] += 1
        elif any(is_heldout([message]) for message in messages if message["role"] == "user"):
            row["heldout"] += 1  # a later turn asks what evaluation asks
        else:
            return Chat(task, self.mode, messages, mistake is not None, off_turn)
        return None


def switch_off(answers: list[Message], mode: Mode, rng: random.Random) -> bool:
    """Drop the thinking of one later turn of a dialogue; False where there is no such turn."""
    places = [index for index, message in enumerate(answers) if "tool_calls" not in message][1:]
    if mode == "off" or not places:
        return False
    place = rng.choice(places)
    before = place
    while before and "tool_calls" in answers[before - 1]:  # the calls of the same turn
        before -= 1
    for message in answers[before : place + 1]:
        message.pop("reasoning_content", None)
    return True


def _write(folder: Path, chats: list[Chat], rows: list[dict]) -> None:
    with open(folder / "chats.jsonl", "w", encoding="utf-8") as file:
        for chat in chats:
            file.write(json.dumps(chat.record(), ensure_ascii=False) + "\n")
    (folder / "funnel.json").write_text(json.dumps(rows, indent=1) + "\n")


def _metrics(chats: list[Chat], rows: list[dict]) -> dict[str, float]:
    total = Counter()
    for row in rows:
        total.update({key: value for key, value in row.items() if isinstance(value, int)})
    counted = (
        "drawn",
        "duplicate",
        "unverified",
        "heldout",
        "environment_failed",
        "wrong_turns",
        "off_turns",
    )
    return {
        "chats": len(chats),
        "short": total["wanted"] - total["written"],  # families that ran out of new prompts
        **{key: total[key] for key in counted},
        **{f"mode/{mode}": sum(chat.mode == mode for chat in chats) for mode in MODES},
        "with_tools": sum(bool(chat.task.tools) for chat in chats),
    }


if __name__ == "__main__":
    run_stage("sft_data", run)
