"""Dialogues of a few turns: earlier thinking may be kept or not, and the user sends back what is wrong."""

import random

from environments.arithmetic import add_steps
from environments.episode import ScriptedEpisode, answer
from environments.interface import Draft, Environment, Episode, Message, Mode, Task
from environments.table import insertion_steps


def _draft(first: str, follow_ups: list[str], answers: list[str], steps: list[str], kept: list[str]) -> Draft:
    """``steps`` is the thinking of each turn from nothing, ``kept`` the thinking when that of earlier
    turns is there.
    """
    truth = {"answers": answers, "follow_ups": follow_ups, "retries": 1, "steps": steps, "kept_steps": kept}
    return Draft(({"role": "user", "content": first},), truth, len(answers))


def _next(rng: random.Random) -> Draft:
    """The largest digit, then the next and the next: with its thinking kept, a policy sorts only once."""
    digits = "".join(rng.sample("0123456789", 4))
    turns = rng.randint(2, 3)
    ordered = "".join(sorted(digits))
    steps = [insertion_steps(digits)] * turns
    answers = list(reversed(ordered))[:turns]
    return _draft(
        f"top {digits}", ["next"] * (turns - 1), answers, steps, [steps[0], *[ordered] * (turns - 1)]
    )


def _total(rng: random.Random) -> Draft:
    """A running total."""
    total, summand = rng.randint(10, 99), rng.randint(10, 99)
    first, follow_ups, answers, steps = f"{total}+{summand}=", [], [], []
    for turn in range(rng.randint(2, 3)):
        if turn:
            summand = rng.randint(10, 99)
            follow_ups.append(f"+{summand}=")
        steps.append(add_steps(total, summand))
        total += summand
        answers.append(str(total))
    return _draft(first, follow_ups, answers, steps, steps)


class Dialogue(Environment):
    name = "dialogue"
    families = ("next", "total")
    _draws = {"next": _next, "total": _total}

    def draw(self, family: str, rng: random.Random) -> Draft:
        return self._draws[family](rng)

    def episode(self) -> Episode:
        return ScriptedEpisode()

    def oracle(self, task: Task, mode: Mode) -> list[Message]:
        steps = task.truth["kept_steps" if mode == "preserved" else "steps"]
        return [
            answer(None if mode == "off" else thought, result)
            for thought, result in zip(steps, task.truth["answers"], strict=True)
        ]

    def mistake(self, task: Task, mode: Mode, rng: random.Random) -> Message | None:
        """The first answer with one digit wrong, thought through or not."""
        right = task.truth["answers"][0]
        place = rng.randrange(len(right))
        digit = rng.choice([digit for digit in "0123456789" if digit != right[place]])
        wrong = right[:place] + digit + right[place + 1 :]
        return answer(None if mode == "off" else task.truth["steps"][0], wrong)
