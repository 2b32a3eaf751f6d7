"""RULER-style retrieval (arXiv 2404.06654) at several lengths, under dense, sparse and window attention."""

from dataclasses import dataclass
from typing import Any

from environments.long_context import score
from evals.policy import Attention, Policy, Result, Score
from evals.suite import share

ATTENTIONS: tuple[Attention, ...] = ("dense", "sparse", "window")


@dataclass(frozen=True)
class LongContextItem:
    id: str
    task: str
    length: int  # in tokens, that the item was made for
    prompt: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class LongContext:
    """Scores: ``<attention>/<length>`` over all tasks and ``<attention>/<task>`` over all lengths; each
    item counts the share of its answers that the completion holds, as in RULER."""

    items: list[LongContextItem]
    max_new_tokens: int
    samples: int = 0
    name: str = "long_context"

    def protocol(self) -> dict[str, Any]:
        items = [[i.id, i.task, i.length, i.prompt, list(i.answers)] for i in self.items]
        return {"version": 1, "items": items, "max_new_tokens": self.max_new_tokens, "decoding": "greedy"}

    def run(self, policy: Policy) -> Result:
        scores: list[Score] = []
        samples: list[dict[str, Any]] = []
        prompts = [item.prompt for item in self.items]
        for attention in ATTENTIONS:
            if attention not in policy.attentions:
                continue
            # The answer is one line: what a model says after it must not find the answer by chance.
            given = policy.complete(prompts, self.max_new_tokens, attention, stop="\n")
            outputs = [text.split("\n", 1)[0] for text in given]
            values = [self._value(item, out) for item, out in zip(self.items, outputs, strict=True)]
            scores += self._scores(attention, values)
            samples += self._samples(attention, outputs, values)
        return Result(scores, samples)

    def _value(self, item: LongContextItem, output: str) -> float:
        return score(item.answers, output)

    def _scores(self, attention: str, values: list[float]) -> list[Score]:
        groups: dict[str, list[float]] = {f"{attention}/all": values}
        for item, value in zip(self.items, values, strict=True):
            groups.setdefault(f"{attention}/{item.length}", []).append(value)
        for item, value in zip(self.items, values, strict=True):
            groups.setdefault(f"{attention}/{item.task}", []).append(value)
        return [share(name, group) for name, group in groups.items()]

    def _samples(self, attention: str, outputs: list[str], values: list[float]) -> list[dict[str, Any]]:
        """The first item of each task, the end of its prompt only."""
        first: dict[str, int] = {}
        for row, item in enumerate(self.items):
            first.setdefault(item.task, row)
        return [
            {
                "kind": "completion",
                "id": self.items[row].id,
                "family": task,
                "attention": attention,
                "tokens": self.items[row].length,
                "prompt_end": self.items[row].prompt[-160:],
                "output": outputs[row],
                "expected": list(self.items[row].answers),
                "score": values[row],
            }
            for task, row in list(first.items())[: self.samples]
        ]
