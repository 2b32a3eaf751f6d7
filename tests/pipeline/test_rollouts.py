"""What ``glm5 explain`` says of reinforcement learning, against numbers worked by hand from the preset tiny.

Weights that a token meets: 998,208. Per layer attention 50,288, indexer 12,864, two norms of 128; the dense
layer's FFN 147,456; in three layers a router of 1,024, a shared expert and two chosen of 36,864 each; the
last norm 128; the head 262,144. The forward pass takes 2 FLOPs each, and in four layers 512 a key that is
attended to (at most 64) and 256 a key that the indexer scores.
"""

import pytest
import yaml

from pipeline.recipe import load_recipe
from pipeline.recipe.explain import default_device, describe
from pipeline.recipe.rollouts import derive_rollouts

WEIGHTS = 2 * 998_208
LAST_OF_1024 = WEIGHTS + 4 * (512 * 64 + 256 * 1024)  # FLOPs of the token with the most keys
# Of 256 positions the first 64 attend to all before them and themselves, 32.5 in the mean.
FORWARD_OF_256 = WEIGHTS + 4 * (512 * (64 * 32.5 + 192 * 64) / 256 + 256 * 128.5)
PAGES = 65_536 // 16 + 1  # and the one that belongs to nobody
LATENTS = 4 * (48 + 16 + 32) * 4  # bytes of a token: four layers' float32 latent, shared key, indexer's key


@pytest.fixture
def rows(tmp_path):
    """``rows(stage, changes)``: the derived row of a stage of tiny with ``changes``, and the whole text."""

    def make(stage: str, **changes):
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump({"extends": "tiny", "model": {"preset": "tiny"}, stage: changes}))
        recipe = load_recipe(str(path))
        row = next(row for row in derive_rollouts(recipe) if row.phase == stage)
        return row, describe(recipe, *default_device(recipe))

    return make


ROLLOUTS = {"engines": 3, "prompts_per_step": 24, "rollouts_per_prompt": 8, "max_new_tokens": 96, "turns": 8}


def test_a_stage_whose_history_may_be_rewritten(rows):
    row, text = rows(
        "reasoning_rl", steps=70, rollouts=ROLLOUTS, modes={"interleaved": 1.0}, sequence_length=256,
        micro_batch=4, difficulty_samples=2, families={"code/fix": 1, "tools/calc": 1, "tools/calendar": 0},
    )  # fmt: skip
    assert LAST_OF_1024 == 3_176_064 and FORWARD_OF_256 == 2_242_944
    assert (row.steps, row.rollouts, row.turns) == (70, 192, 8)
    assert row.sampled_tokens == 192 * 768 == 147_456
    # Thinking may be cleared before every turn, so that each begins a segment, which fills a row at most.
    assert row.trained_tokens == 192 * 8 * 256 == 393_216
    assert row.sampling_flops == pytest.approx(70 * 147_456 * LAST_OF_1024, rel=1e-9)
    assert row.training_flops == pytest.approx(70 * 393_216 * 3 * FORWARD_OF_256, rel=1e-12)
    assert (row.engines, row.processes) == (3, 5)
    assert row.cache_bytes == PAGES * 16 * (LATENTS + 3 * 2 * 2) == 101_474_496  # int16 in three layers
    assert f"{row.sampling_flops:.3g}" in text and " 0.0945" in text and "upper bounds" in text
    # Tasks of two families with weight, as many as rl_tasks makes of each.
    tasks = 2 * load_recipe("tiny").rl_tasks.tasks_per_family
    assert f"first tries {tasks:,} tasks 2 times each: at most {tasks * 2 * 768:,} tokens sampled" in text


def test_a_stage_that_only_appends_trains_a_row_a_rollout(rows):
    rollouts = {**ROLLOUTS, "ahead": 1, "record_experts": False}
    common = {"modes": {"preserved": 1.0}, "sequence_length": 256, "steps": 5}
    row, _ = rows("agentic_rl", rollouts=rollouts, micro_batch=5, **common)
    assert row.sampled_tokens == 147_456
    assert row.trained_tokens == 195 * 256  # rows are padded to whole micro-batches of 5
    assert row.cache_bytes == PAGES * 16 * LATENTS
    # One segment holds a token of a prompt and no more than the context.
    long, _ = rows("agentic_rl", rollouts={**rollouts, "max_new_tokens": 500}, micro_batch=5, **common)
    assert long.sampled_tokens == 192 * 1023
    for more in ({"folding": {}}, {"rollouts": {**rollouts, "programs": {"tools/chain": ["agent"]}}}):
        forked, _ = rows("agentic_rl", **{"rollouts": rollouts, "micro_batch": 1, **common, **more})
        assert forked.trained_tokens == 192 * 8 * 256


def test_computing_again_and_teachers_cost_a_forward_pass_each(rows):
    common = {"modes": {"off": 1.0}, "sequence_length": 256, "micro_batch": 4, "steps": 10}
    plain, _ = rows("general_rl", rollouts=ROLLOUTS, **common)
    again, _ = rows("general_rl", rollouts=ROLLOUTS, recompute=True, **common)
    taught, text = rows(
        "distill", rollouts={"prompts_per_step": 192, "max_new_tokens": 96, "turns": 8}, **common
    )
    tokens = 10 * 192 * 256
    assert plain.training_flops == pytest.approx(tokens * 3 * FORWARD_OF_256, rel=1e-12)
    assert again.training_flops == pytest.approx(tokens * 4 * FORWARD_OF_256, rel=1e-12)
    assert taught.training_flops == pytest.approx(tokens * 4 * FORWARD_OF_256, rel=1e-12)
    assert f"cache of {PAGES * 16 * LATENTS / 2**30:.3g} GiB each" in text and "4 teachers" in text


def test_what_is_done_before_the_first_step_is_told_where_it_is_done(rows):
    _, text = rows("reasoning_rl", difficulty_samples=0)
    assert "first tries" not in text
    pairs = load_recipe("tiny").general_rl.reward_model
    assert f"reward model on {pairs.pairs + pairs.anchors:,} pairs, {pairs.epochs:g} epochs" in text
    rewards = {"task": 1.0, "format": 0.2}
    _, text = rows("general_rl", rewards=rewards, reward_model=None)
    assert "reward model on" not in text
