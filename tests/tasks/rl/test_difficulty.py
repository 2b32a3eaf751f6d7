"""What a policy solves sometimes is what it learns from."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from environments.catalog import environments
from model.chat.tokenizer import Tokenizer
from model.hub import load_folder
from pipeline.errors import UserError
from pipeline.progress import Progress
from pipeline.recipe.rl import ReasoningRlSection
from tasks.rl.difficulty import curriculum, solve_rates
from tasks.rl.rollout import Limits
from tasks.rl.setup import graded, services_of

SECTION = ReasoningRlSection(
    steps=1, optimizer={"muon_lr": 0.1, "adamw_lr": 0.1}, families={"graph/reach": 1}, modes={"off": 1},
    sequence_length=64, micro_batch=1,
    rollouts={"prompts_per_step": 1, "rollouts_per_prompt": 2, "max_new_tokens": 8},
)  # fmt: skip


def test_what_is_always_solved_and_what_is_unjudged_is_left_out_and_counted():
    pairs = [(name, "off") for name in "abcde"]
    chosen, counts = curriculum(pairs, [0.25, 1.0, None, 0.75, 0.0])
    assert chosen == [("d", "off"), ("a", "off"), ("e", "off")]  # the easiest first
    assert counts == {"never": 1, "sometimes": 2, "always": 1, "unjudged": 1, "mean_rate": 0.5}


def reach_tasks(count: int = 4):
    """Yes-or-no questions for a model that guesses, and the same with an answer that it never gives."""
    asked = [environments()["graph"].make_task("reach", seed) for seed in range(count)]
    never = [replace(task, truth={**task.truth, "answers": ["perhaps"]}) for task in asked]
    return [(task, "off") for task in asked], [(task, "off") for task in never]


def test_rates_of_a_model_that_guesses(guesser):
    asked, never = reach_tasks()
    model, tokenizer = load_folder(guesser).eval(), Tokenizer.load(guesser)
    settings = dict(samples=16, max_new_tokens=8, seed=3, limits=Limits(), at_once=64)
    rates = solve_rates(model, tokenizer, environments(), [*asked, *never], **settings)
    assert all(0.1 < rate < 0.9 for rate in rates[:4]) and rates[4:] == [0.0] * 4, rates
    assert rates == solve_rates(model, tokenizer, environments(), [*asked, *never], **settings)


def test_a_family_without_such_a_task_is_left_out_and_without_any_family_there_is_a_sentence(
    guesser, tmp_path
):
    asked, never = reach_tasks(12)
    model, tokenizer = load_folder(guesser), Tokenizer.load(guesser)

    def context(name: str):
        scratch = tmp_path / name
        scratch.mkdir()
        return SimpleNamespace(
            scratch=scratch, section=SECTION, seed=0, progress=Progress(scratch, name), facts={}
        )

    first = context("first")
    pairs = {"graph/reach": asked, "graph/never": never}
    kept, shares = graded(first, model, tokenizer, pairs, 4)
    assert list(kept) == list(shares) == ["graph/reach"] and 0 < len(kept["graph/reach"]) <= 12
    assert shares["graph/reach"] == first.facts["difficulty/graph/reach/sometimes"] / 12
    assert first.facts["difficulty/graph/never/never"] == 12
    rates = json.loads((first.scratch / "solve_rates.json").read_text())
    (first.scratch / "solve_rates.json").write_text(json.dumps([0.5] * len(rates)))
    kept, shares = graded(first, model, tokenizer, pairs, 4)  # not measured again
    assert len(kept["graph/never"]) == 12 and shares == {"graph/reach": 1.0, "graph/never": 1.0}
    for damaged in ("", "[0.5", "[0.5, 0.5]", json.dumps({"a": 1}), json.dumps(["x"] * len(rates))):
        (first.scratch / "solve_rates.json").write_text(damaged)
        graded(first, model, tokenizer, pairs, 4)
        assert json.loads((first.scratch / "solve_rates.json").read_text()) == rates
    with pytest.raises(UserError, match="of 12 tasks none was solved in some of 4 samples"):
        graded(context("second"), model, tokenizer, {"graph/never": never}, 4)


def test_a_program_that_is_not_there_is_a_sentence_before_anything_is_trained(tmp_path):
    rollouts = SECTION.rollouts.model_copy(update={"programs": {"graph/reach": ["/no/agent", "--now"]}})
    context = SimpleNamespace(
        stage="agentic_rl", scratch=tmp_path, section=SECTION.model_copy(update={"rollouts": rollouts})
    )
    with pytest.raises(
        UserError, match="agentic_rl.rollouts.programs: '/no/agent', the agent of graph/reach"
    ):
        services_of(context, {"graph/reach": reach_tasks()[0]})
