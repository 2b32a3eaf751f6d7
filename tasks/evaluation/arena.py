"""The arena of an evaluation: all checkpoints that chat, by their greedy answers to the same tasks."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from evals.arena import VERSION, hold
from pipeline.artifacts import digest_of
from tasks.evaluation.scorecard import Scorecard
from tasks.training.stages import BASE_STAGES

SUITE, SEED = "environments", 0


def hold_arena(card: Scorecard, names: Sequence[str]) -> dict[str, Any] | None:
    """Ratings, wins and the protocol's hash; None for fewer than two checkpoints that chat.

    The contestants are part of the protocol: a rating says how one stands among these.
    """
    contestants = [name for name in names if name not in BASE_STAGES]
    if len(contestants) < 2:
        return None
    answers = {name: card.results[name, SUITE].attempts for name in contestants}
    asked = {card.protocols[name, SUITE] for name in contestants}
    protocol = digest_of({"arena": VERSION, "asked": sorted(asked), "contestants": contestants, "seed": SEED})
    return {**asdict(hold(answers, SEED)), "protocol": protocol}


def arena_rows(arena: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The ratings as rows of the scorecard."""
    return [
        {
            "checkpoint": rating["name"], "suite": "arena", "name": "rating", "value": rating["value"],
            "low": rating["low"], "high": rating["high"], "n": arena["tasks"], "protocol": arena["protocol"],
        }
        for rating in (arena or {}).get("ratings", ())
    ]  # fmt: skip
