"""Policies without a model through the same suites: rows that show what each of them measures."""

from collections.abc import Sequence

from evals.environments import Environments
from evals.humaneval import HumanEval
from evals.long_context import LongContext
from evals.scripted import SCRIPTS, Answers, Scripted
from evals.suite import Suite
from pipeline.artifacts import digest_of
from tasks.evaluation.cache import Cache
from tasks.evaluation.scorecard import Scorecard

VERSION = 1


def score_scripts(suites: Sequence[Suite], cache: Cache) -> Scorecard:
    """A scorecard of each script on each suite."""
    answers: list[Answers] = []  # made when the first score is missing

    def known() -> Answers:
        if not answers:
            answers.append(_answers(suites))
        return answers[0]

    card = Scorecard()
    for script in SCRIPTS:
        digest = digest_of({"scripted": script, "version": VERSION})
        for suite in suites:
            card.add(script, suite, cache, digest, lambda: suite.run(Scripted(script, known())))  # noqa: B023
    return card


def _answers(suites: Sequence[Suite]) -> Answers:
    found = Answers()
    for suite in suites:
        match suite:
            case Environments():
                found.add_tasks(suite.items)
            case LongContext():  # RULER's too
                found.add_long(suite.items)
            case HumanEval():
                found.add_code(suite.problems)
    return found
