"""Episodes as ATIF trajectories: all messages kept, results beside their calls, nonsense refused."""

import json

import pytest
from pydantic import ValidationError

from environments.interface import Verdict
from environments.trajectory import Agent, Metrics, Step, Trajectory
from tests.environments.test_environments import TRAINED, tasks


def played(name, mode="interleaved"):
    import asyncio

    from environments.interface import play

    environment, (task,) = tasks(name, 1)
    messages, verdict = asyncio.run(play(environment, task, environment.oracle(task, mode)))
    return task, messages, verdict


@pytest.mark.parametrize("name", ["arithmetic/add2", "tools/chain", "dialogue/next", "lookup/two"])
def test_a_trajectory_holds_the_whole_dialogue(name):
    task, messages, verdict = played(name)
    stored = json.loads(
        Trajectory.of_dialogue(task, messages, verdict, agent="oracle", session="s1").to_json()
    )
    assert stored["schema_version"] == "ATIF-v1.8" and stored["extra"]["reward"] == 1.0
    told = [message for message in messages if message["role"] != "tool"]
    assert [step["message"] for step in stored["steps"]] == [message["content"] or "" for message in told]
    assert [step.get("reasoning_content") for step in stored["steps"]] == [
        message.get("reasoning_content") for message in told
    ]
    observed = [
        result["content"]
        for step in stored["steps"]
        for result in step.get("observation", {}).get("results", [])
    ]
    assert observed == [message["content"] for message in messages if message["role"] == "tool"]
    for step in stored["steps"]:
        called = [call["tool_call_id"] for call in step.get("tool_calls", [])]
        answered = [result["source_call_id"] for result in step.get("observation", {}).get("results", [])]
        assert called == answered
    assert Trajectory.model_validate(stored).to_json() == json.dumps(stored, ensure_ascii=False, indent=1)


def test_sampled_tokens_are_kept():
    task, messages, verdict = played("arithmetic/add2")
    tokens = Metrics(prompt_token_ids=[1, 2], completion_token_ids=[3], logprobs=[-0.5])
    trajectory = Trajectory.of_dialogue(task, messages, verdict, "policy", "sft", metrics=[tokens])
    (agent_step,) = [step for step in trajectory.steps if step.source == "agent"]
    assert agent_step.metrics == tokens and agent_step.llm_call_count == 1


def test_a_verdict_without_a_reward_stays_without_one():
    task, messages, _ = played("arithmetic/add2")
    trajectory = Trajectory.of_dialogue(task, messages, Verdict(None, "the sandbox broke"), "oracle")
    assert trajectory.extra["reward"] is None and trajectory.extra["reason"] == "the sandbox broke"


def test_calls_that_a_model_wrote_badly_are_kept_as_text():
    task, messages, verdict = played("tools/calc")
    messages[1] = {
        **messages[1],
        "tool_calls": [{"id": "a", "function": {"name": "calc", "arguments": "{1+"}}],
    }
    messages[2] = {**messages[2], "tool_call_id": "a"}
    step = Trajectory.of_dialogue(task, messages, verdict, "policy").steps[1]
    assert (
        step.tool_calls[0].arguments == {"text": "{1+"} and step.observation.results[0].source_call_id == "a"
    )


def test_what_is_no_unicode_does_not_keep_an_episode_from_being_written(tmp_path):
    task, messages, verdict = played("tools/calc")
    call = {"function": {"name": "calc", "arguments": {"e": "1\ud800"}}}
    said = [{**messages[1], "tool_calls": [call], "content": "\udcff!"}, *messages[2:]]
    written = Trajectory.of_dialogue(task, [messages[0], *said], verdict, "policy").to_json().encode()
    step = json.loads(written)["steps"][1]
    assert step["message"] == "?!" and step["tool_calls"][0]["arguments"] == {"e": "1?"}


@pytest.mark.parametrize(
    "steps, fault",
    [
        ([], "at least 1 item"),
        ([{"step_id": 2, "source": "user", "message": ""}], "not numbered 1 to 1"),
        ([{"step_id": 1, "source": "user", "message": "", "reasoning_content": "x"}], "agents alone"),
        ([{"step_id": 1, "source": "robot", "message": ""}], "source"),
        ([{"step_id": 1, "source": "agent", "message": "", "surprise": 1}], "surprise"),
        ([{"step_id": 1, "source": "agent", "message": "", "llm_call_count": 0,
           "reasoning_content": "x"}], "called no model"),
        ([{"step_id": 1, "source": "agent", "message": "",
           "observation": {"results": [{"source_call_id": "a"}]}}], "never called"),
    ],
)  # fmt: skip
def test_what_the_format_refuses_is_refused(steps, fault):
    with pytest.raises(ValidationError, match=fault):
        Trajectory(agent=Agent(name="a", version="1"), steps=steps)


def test_every_family_of_the_catalog_can_be_recorded():
    for name in TRAINED:
        task, messages, verdict = played(name)
        assert len(Trajectory.of_dialogue(task, messages, verdict, "oracle").steps) > 1
    assert Step(step_id=1, source="user", message="hello").llm_call_count is None
