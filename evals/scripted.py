"""Policies without a model, whose scores show what a suite measures.

``oracle`` gives the right answer: 1 where the suite is sound. ``nop`` says nothing: 0. ``random`` gives the
right answer to another item of the same kind: what form alone is worth. ``heuristic`` copies: in a chat the
last word that it was told, in a text what followed when its end stood there before, in code the first
parameter.
"""

import ast
import json
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from environments.catalog import environments
from environments.interface import Message, Mode
from evals.attempts import Item
from evals.humaneval import Problem
from evals.long_context import LongContextItem
from evals.policy import Chat, Reply, Scored

Script = Literal["oracle", "random", "heuristic", "nop"]
SCRIPTS: tuple[Script, ...] = get_args(Script)
LONGEST_MATCH, COPIED = 64, 80  # characters
CODE = "code"  # the kind of HumanEval's problems


@dataclass
class Answers:
    """What an oracle knows: the messages of each task and mode, the completion of each prompt."""

    chats: dict[tuple[str, Mode], list[Message]] = field(default_factory=dict)
    families: dict[tuple[str, Mode], list[tuple[str, Mode]]] = field(default_factory=dict)
    completions: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)  # of a prompt

    def add_tasks(self, items: Iterable[Item]) -> None:
        catalog = environments()
        for item in items:
            key = json.dumps(list(item.task.messages)), item.mode
            self.chats[key] = catalog[item.task.environment].oracle(item.task, item.mode)
            family = f"{item.task.environment}/{item.task.family}", item.mode
            self.families.setdefault(family, []).append(key)

    def add_long(self, items: Iterable[LongContextItem]) -> None:
        for item in items:
            self.completions[item.prompt] = " " + ", ".join(item.answers)
            self.kinds[item.prompt] = item.task

    def add_code(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self.completions[problem.prompt] = problem.canonical_solution
            self.kinds[problem.prompt] = CODE


class Scripted:
    """Takes the place of a checkpoint before every suite that asks for text, or likelihoods of documents."""

    attentions = ("dense",)
    top_k = 0

    def __init__(self, script: Script, answers: Answers):
        self.script = script
        self._chats, self._completions, self._kinds = answers.chats, answers.completions, answers.kinds
        self._others = _others(answers.families.values())
        by_kind: dict[str, list[str]] = {}
        for prompt, kind in answers.kinds.items():
            by_kind.setdefault(kind, []).append(prompt)
        self._other_prompts = _others(by_kind.values())
        self._lengths = sorted({len(json.loads(prompt)) for prompt, _ in answers.chats})

    def generate(
        self, chats: list[Chat], mode: Mode, max_new_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> list[Reply]:
        return [Reply(self.answer(chat.messages, mode), 1, True, None, "stop") for chat in chats]

    def answer(self, messages: list[Message], mode: Mode) -> Message:
        """The next turn of a dialogue that begins as one of the tasks does."""
        starts = (json.dumps(messages[:length]) for length in self._lengths)
        asked = next((start, mode) for start in starts if (start, mode) in self._chats)
        said = messages[len(json.loads(asked[0])) :]
        if self.script == "nop":
            return {"role": "assistant", "content": ""}
        if self.script == "heuristic":
            words = str(messages[-1].get("content") or "").split()
            return {"role": "assistant", "content": words[-1] if words else ""}
        right = self._chats.get(asked if self.script == "oracle" else self._others[asked])
        if right is None:
            return {"role": "assistant", "content": ""}
        turn = sum(message["role"] == "assistant" for message in said)
        return dict(right[min(turn, len(right) - 1)])

    def complete(
        self,
        prompts: list[str],
        max_new_tokens: int,
        attention: str,
        stop: str | None,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[str]:
        return [self._complete(prompt) for prompt in prompts]

    def _complete(self, prompt: str) -> str:
        if self.script == "nop":
            return ""
        if self.script == "heuristic":
            return first_parameter(prompt) if self._kinds[prompt] == CODE else copied(prompt)
        return self._completions.get(prompt if self.script == "oracle" else self._other_prompts[prompt], "")

    def logprobs(self, texts: list[str], max_tokens: int, attention: str) -> list[Scored]:
        """Bytes as tokens, each as likely as any; the oracle is sure of each."""
        nats = 0.0 if self.script == "oracle" else math.log(256)
        cut = [text.encode()[:max_tokens] for text in texts]
        return [
            Scored(np.full(len(data), nats), np.ones(len(data)), [chr(byte) for byte in data]) for data in cut
        ]

    def segments(self, chat: Chat, mode: Mode) -> list[tuple[str, bool]]:
        return [
            (str(message.get("content") or ""), message["role"] == "assistant") for message in chat.messages
        ]


def copied(text: str) -> str:
    """What stood behind the last place where the longest end of ``text`` stood before, to the line's end."""
    for length in range(min(LONGEST_MATCH, len(text) - 1), 0, -1):
        at = text.rfind(text[-length:], 0, len(text) - 1)
        if at >= 0:
            return text[at + length :][:COPIED].split("\n", 1)[0]
    return ""


def first_parameter(prompt: str) -> str:
    """A body that returns the first parameter of the last function of ``prompt``."""
    functions = [node for node in ast.parse(prompt).body if isinstance(node, ast.FunctionDef)]
    names = functions[-1].args.args if functions else []
    return f"    return {names[0].arg}\n" if names else "    pass\n"


def _others(groups: Iterable[list]) -> Mapping:
    """For each member another one of its group, by a seeded lot; None in a group of one."""
    rng, found = random.Random(0), {}
    for group in groups:
        order = rng.sample(group, len(group))
        after = order[1:] + order[:1] if len(order) > 1 else [None]
        found |= dict(zip(order, after, strict=True))
    return found
