"""Score every checkpoint of the recipe: ``python -m tasks.evaluate --recipe tiny``.

Writes ``scores.json`` (a row per checkpoint and score, with its interval; what each stage changed) and
``samples.jsonl``. A result is kept by (checkpoint, protocol) below the run folder: only what is missing is
computed.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evals.policy import Result
from evals.suite import Suite, protocol_hash
from model.chat.tokenizer import Tokenizer
from pipeline.artifacts import digest_of
from pipeline.errors import UserError
from pipeline.stage import Context, run_stage
from tasks.evaluation.baselines import ORDERS, fitted_on, score_baselines
from tasks.evaluation.cache import Cache, checkpoint_digest
from tasks.evaluation.changes import changes
from tasks.evaluation.headline import headline
from tasks.evaluation.items import EvalSets
from tasks.evaluation.policy import LocalPolicy
from tasks.training.setup import pick_device


@dataclass
class Scorecard:
    """All results, by the name of the checkpoint or baseline and by suite."""

    results: dict[tuple[str, str], Result] = field(default_factory=dict)
    protocols: dict[tuple[str, str], str] = field(default_factory=dict)
    seconds: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, suite: Suite, cache: Cache, digest: str, compute: Callable[[], Result]) -> None:
        """Take the result of ``suite`` on what ``digest`` identifies from the cache, else compute it."""
        started = time.time()
        protocol = protocol_hash(suite)
        key = digest_of([protocol, getattr(suite, "samples", 0)])
        self.results[name, suite.name], cached = cache.get(digest, key, compute)
        self.protocols[name, suite.name] = protocol
        spent = {"seconds": round(time.time() - started, 2), "cached": cached}
        self.seconds.append({"checkpoint": name, "suite": suite.name, **spent})

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "checkpoint": name, "suite": suite, "name": score.name, "value": score.value,
                "low": score.low, "high": score.high, "n": score.n, "protocol": self.protocols[name, suite],
            }
            for (name, suite), result in self.results.items()
            for score in result.scores
        ]  # fmt: skip

    def samples(self) -> list[dict[str, Any]]:
        return [
            {"checkpoint": name, "suite": suite, **sample}
            for (name, suite), result in self.results.items()
            for sample in result.samples
        ]


def run(context: Context) -> dict[str, float]:
    """Run every suite on every checkpoint, and the n-gram baselines beside them."""
    names = context.section.checkpoints
    unknown = [name for name in names if name not in context.inputs]
    if unknown:
        raise UserError(
            f"evaluate.checkpoints names {', '.join(unknown)}, which dvc.yaml does not give to evaluate: "
            "leave it out or add it to the stage's deps"
        )
    sets = EvalSets(context.inputs["eval_sets"], context.section)
    cache = Cache(context.scratch / "cache")
    card = Scorecard()
    suites = {name: sets.suites(name) for name in names}
    total, done = sum(map(len, suites.values())), 0
    _add_baselines(context, suites[names[0]][0], cache, card)
    for name in names:
        checkpoint = _Checkpoint(context.inputs[name])
        digest = checkpoint_digest(context.input_records[name])
        for suite in suites[name]:
            context.progress.update("score", done, total, "suite", f"{name} {suite.name}")
            card.add(name, suite, cache, digest, lambda: suite.run(checkpoint.policy()))  # noqa: B023 - called at once
            done += 1
    context.progress.update("score", done, total, "suite")
    _write(context, card)
    return headline(card.results, names, ORDERS)


class _Checkpoint:
    """A checkpoint folder; the model is loaded when the first score of it is missing."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._policy: LocalPolicy | None = None

    def policy(self) -> LocalPolicy:
        if self._policy is None:
            self._policy = LocalPolicy.load(self.folder, pick_device())
        return self._policy


def _add_baselines(context: Context, suite: Suite, cache: Cache, card: Scorecard) -> None:
    """Unigram and 3-gram beside bits per byte, from the windows that pre-training saw."""
    fit = fitted_on(context.input_records["pretrain"])
    computed: dict[str, Result] = {}

    def compute(order: str) -> Result:
        if not computed:
            tokenizer = Tokenizer.load(context.inputs["pretrain"])
            computed.update(score_baselines(suite, context.inputs["pretrain_data"], tokenizer, fit))
        return computed[order]

    for order in ORDERS:
        identity = digest_of({"baseline": order, "version": 1, **fit})
        card.add(order, suite, cache, identity, lambda: compute(order))  # noqa: B023 - called at once


def _write(context: Context, card: Scorecard) -> None:
    names = context.section.checkpoints
    scores = {
        "rows": card.rows(),
        "changes": changes(card.results, card.protocols, [*ORDERS, *names]),
        "checkpoints": {name: checkpoint_digest(context.input_records[name]) for name in names},
        "settings": {**context.section.model_dump(mode="json"), "decoding": "greedy", "intervals": "95 %"},
    }
    text = json.dumps(_finite(scores), indent=1, allow_nan=False)
    (context.out / "scores.json").write_text(text + "\n")
    with open(context.out / "samples.jsonl", "w", encoding="utf-8") as file:
        for sample in card.samples():
            file.write(json.dumps(sample, ensure_ascii=False) + "\n")
    context.facts["seconds_by_suite"] = card.seconds


def _finite(value: Any) -> Any:
    """Infinite bounds (an interval of one item) become null: JSON has no infinity."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value


if __name__ == "__main__":
    run_stage("evaluate", run)
