"""The arena of an evaluation: all checkpoints that chat, by their greedy answers to the same tasks."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from evals.arena import VERSION, hold
from pipeline.artifacts import digest_of
from tasks.evaluation.scorecard import Scorecard
from tasks.training.stages import BASE_STAGES

SUITE, SEED = "environments", 0


def hold_arena(card: Scorecard, names: Sequence[str]) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Ratings, wins and the protocol's hash; None for fewer than two checkpoints that chat.

    None too where nothing was judged, since all environments failed; then ``{"arena": why}`` comes with it.
    The contestants are part of the protocol: a rating says how one stands among these.
    """
    contestants = [name for name in names if name not in BASE_STAGES]
    if len(contestants) < 2:
        return None, {}
    answers = {name: card.results[name, SUITE].attempts for name in contestants}
    asked = {card.protocols[name, SUITE] for name in contestants}
    protocol = digest_of({"arena": VERSION, "asked": sorted(asked), "contestants": contestants, "seed": SEED})
    try:
        return {**asdict(hold(answers, SEED)), "protocol": protocol}, {}
    except ValueError as error:  # the scores that took so long are worth keeping
        return None, {"arena": str(error)}


def arena_rows(arena: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The ratings as rows of the scorecard."""
    return [
        {
            "checkpoint": rating["name"], "suite": "arena", "name": "rating", "value": rating["value"],
            "low": rating["low"], "high": rating["high"], "n": arena["tasks"], "protocol": arena["protocol"],
        }
        for rating in (arena or {}).get("ratings", ())
    ]  # fmt: skip
