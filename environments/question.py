"""Single-turn environments: a question, steps that lead to the answer, an answer that is compared exactly."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from environments.episode import ScriptedEpisode, answer
from environments.interface import Draft, Environment, Episode, Message, Mode, Task


@dataclass(frozen=True)
class Question:
    prompt: str
    steps: str  # how a careful solver gets there, written out
    answer: str
    difficulty: int


class QuestionEnvironment(Environment):
    """``generators`` holds a function a family."""

    generators: dict[str, Callable[[random.Random], Question]]

    def draw(self, family: str, rng: random.Random) -> Draft:
        question = self.generators[family](rng)
        return Draft(
            messages=({"role": "user", "content": question.prompt},),
            truth={"answers": [question.answer], "steps": question.steps},
            difficulty=question.difficulty,
        )

    def episode(self) -> Episode:
        return ScriptedEpisode()

    def oracle(self, task: Task, mode: Mode) -> list[Message]:
        return [answer(None if mode == "off" else task.truth["steps"], task.truth["answers"][0])]
