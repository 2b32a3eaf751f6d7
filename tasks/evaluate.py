"""Score every checkpoint of the recipe: ``python -m tasks.evaluate --recipe tiny``.

Writes ``scores.json`` (a row per checkpoint and score, with its interval; what each stage changed; a
quantised model beside its parent; the arena; scripted policies),
``items.json`` (what each item gave, for comparisons with other evaluations) and ``samples.jsonl``. A result
is kept by (checkpoint, protocol) below the run folder: only what is missing is computed.
"""

import json
import threading
from pathlib import Path

from evals.ngram import BASELINES
from evals.policy import Result
from evals.suite import Suite
from model.chat.tokenizer import Tokenizer
from pipeline.artifacts import digest_of
from pipeline.errors import UserError
from pipeline.stage import Context, run_stage
from tasks.evaluation.arena import arena_rows, hold_arena
from tasks.evaluation.baselines import fitted_on, score_baselines
from tasks.evaluation.cache import Cache, checkpoint_digest
from tasks.evaluation.changes import changes
from tasks.evaluation.eval_sets import EvalSets
from tasks.evaluation.headline import headline
from tasks.evaluation.parents import beside_parents
from tasks.evaluation.policy import LocalPolicy
from tasks.evaluation.scorecard import Scorecard, finite
from tasks.evaluation.scripted import score_scripts
from tasks.side_by_side import side_by_side
from tasks.training.ranks import pick_device


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
    suites = {name: sets.suites(name) for name in names}
    scoring = _Scoring(context, cache, suites)
    card = Scorecard()
    _add_baselines(context, suites[names[0]][0], cache, card)
    device = pick_device()
    # The last checkpoint has the most to answer: with it first, no thread is left alone with it at the end.
    cards = dict(zip(reversed(names), side_by_side(scoring, list(reversed(names)), device), strict=True))
    for name in names:
        card.extend(cards[name])
    context.facts["decode"] = {name: scoring.decode[name] for name in names if name in scoring.decode}
    _write(context, card, score_scripts(sets.suites_of_scripts(), cache), sets.left_out)
    return headline(card.results, names, BASELINES)


class _Scoring:
    """Every suite on one checkpoint. Several checkpoints may be scored at once."""

    def __init__(self, context: Context, cache: Cache, suites: dict[str, list[Suite]]):
        self._context, self._cache, self._suites = context, cache, suites
        self._total, self._done, self._lock = sum(map(len, suites.values())), 0, threading.Lock()
        self.decode: dict[str, str] = {}  # of each checkpoint that was loaded, how it decoded

    def __call__(self, name: str) -> Scorecard:
        card, checkpoint = Scorecard(), _Checkpoint(self._context.inputs[name])
        digest = checkpoint_digest(self._context.input_records[name])
        for suite in self._suites[name]:
            self._progress(0, f"{name} {suite.name}")  # with several at once, the one begun last
            card.add(name, suite, self._cache, digest, lambda: suite.run(checkpoint.policy()))  # noqa: B023 - called at once
            self._progress(1, f"{name} {suite.name} is done")
        if checkpoint.loaded:
            self.decode[name] = checkpoint.policy().decode
        return card

    def _progress(self, finished: int, note: str) -> None:
        with self._lock:
            self._done += finished
            self._context.progress.update("score", self._done, self._total, "suite", note)


class _Checkpoint:
    """A checkpoint folder; the model is loaded when the first score of it is missing."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._policy: LocalPolicy | None = None

    @property
    def loaded(self) -> bool:
        return self._policy is not None

    def policy(self) -> LocalPolicy:
        if self._policy is None:
            self._policy = LocalPolicy.load(self.folder, pick_device())
        return self._policy


def _add_baselines(context: Context, suite: Suite, cache: Cache, card: Scorecard) -> None:
    """Unigram and 3-gram beside bits per byte, from the windows that pre-training saw."""
    fit = fitted_on(context.input_records["pretrain"])
    computed: dict[str, Result] = {}

    def compute(name: str) -> Result:
        if not computed:
            tokenizer = Tokenizer.load(context.inputs["pretrain"])
            computed.update(score_baselines(suite, context.inputs["pretrain_data"], tokenizer, fit))
        return computed[name]

    for name in BASELINES:
        identity = digest_of({"baseline": name, "version": 1, **fit})
        card.add(name, suite, cache, identity, lambda: compute(name))  # noqa: B023 - called at once


def _write(context: Context, card: Scorecard, scripted: Scorecard, left_out: dict[str, str]) -> None:
    names = context.section.checkpoints
    ordered = [*BASELINES, *names]
    arena, why_not = hold_arena(card, names)
    scores = {
        "rows": [*card.rows(), *arena_rows(arena)],
        "changes": changes(card.results, card.protocols, zip(ordered, ordered[1:], strict=False)),
        "beside_parent": beside_parents(card, context.inputs, context.input_records, names),
        "arena": arena,
        "scripted": scripted.rows(),
        "left_out": left_out | why_not,
        "checkpoints": {name: checkpoint_digest(context.input_records[name]) for name in names},
        "settings": {**context.section.model_dump(mode="json"), "decoding": "greedy", "intervals": "95 %"},
    }
    text = json.dumps(finite(scores), indent=1, allow_nan=False)
    (context.out / "scores.json").write_text(text + "\n")
    (context.out / "items.json").write_text(json.dumps(finite(card.items()), allow_nan=False) + "\n")
    with open(context.out / "samples.jsonl", "w", encoding="utf-8") as file:
        for sample in card.samples():
            file.write(json.dumps(sample, ensure_ascii=False) + "\n")
    context.facts["seconds_by_suite"] = card.seconds + scripted.seconds


if __name__ == "__main__":
    run_stage("evaluate", run)
