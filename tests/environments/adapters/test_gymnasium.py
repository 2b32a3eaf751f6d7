"""The synchronous face of an environment: the oracle is rewarded, long ones are cut, failures told."""

import pytest

from environments.adapters.gymnasium import EnvironmentFailed, World
from environments.catalog import environments
from environments.interface import Verdict

CATALOG = environments()


@pytest.fixture
def world():
    made = World(CATALOG["tools"], "chain")
    yield made
    made.close()


def answers_of(world):
    return CATALOG[world.environment.name].oracle(world.task, "interleaved")


def test_the_oracle_earns_the_reward_with_its_last_step(world):
    prompt, info = world.reset(seed=3)
    assert prompt[0]["role"] == "user" and info["tools"][0]["function"]["name"] == "calc"
    steps = [world.step(answer) for answer in answers_of(world)]
    assert [(reward, terminated) for _, reward, terminated, _, _ in steps] == [
        (0.0, False), (0.0, False), (1.0, True),
    ]  # fmt: skip
    assert [message["role"] for message in steps[0][0]] == ["tool"] and steps[-1][4]["reason"] == "right"


def test_a_seed_names_a_task_and_a_task_can_be_given(world):
    first, _ = world.reset(seed=5)
    task = world.task
    assert world.reset(seed=6)[0] != first
    assert world.reset(options={"task": task})[0] == first


def test_too_many_steps_truncate_and_are_judged():
    world = World(CATALOG["tools"], "chain", max_steps=1)
    world.reset(seed=1)
    _, reward, terminated, truncated, info = world.step(answers_of(world)[0])
    assert (reward, terminated, truncated) == (0.0, False, True) and "before the last answer" in info[
        "reason"
    ]
    with pytest.raises(RuntimeError, match="reset the world"):
        world.step({"role": "assistant", "content": ""})
    world.close()


def test_a_failed_environment_gives_no_reward(world, monkeypatch):
    world.reset(seed=1)

    async def broken():
        return Verdict(None, "the sandbox broke")

    monkeypatch.setattr(world._episode, "verify", broken)
    with pytest.raises(EnvironmentFailed, match="the sandbox broke"):
        for answer in answers_of(world):
            world.step(answer)
