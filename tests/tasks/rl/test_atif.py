"""Kept rollouts as ATIF: text from the messages, tokens from the segments, what cannot be read left out."""

import json

import pytest

from environments.episode import answer, call_message
from environments.trajectory import Trajectory as Atif
from pipeline.errors import UserError
from tasks.rl import atif
from tasks.rl.trajectory import Segment, Trajectory, Turn


def segment(*turns):
    """Of (seconds, context, sampled tokens); a token's log-probability is -0.1 times its id."""
    made = Segment()
    for began, context, sampled in turns:
        place = len(made)
        made.read(context)
        made.turns.append(Turn("start", place, len(made), began, began + 1))
        made.sample(sampled, [-0.1 * token for token in sampled], [3] * len(sampled))
    made.read([99])  # read for an answer that never came
    return made


MESSAGES = [
    {"role": "user", "content": "What is 1+1?"},
    call_message("easy", "calc", e="1+1"),
    {"role": "tool", "content": "2"},
    call_message(None, "calc", e="2"),
    {"role": "tool", "content": "2"},
    answer("so", "2"),
]


def record(messages=MESSAGES, **changes):
    # The second answer stands in a segment of its own: its context was folded.
    segments = [segment((10.0, [1, 2], [5, 6]), (30.0, [3], [7])), segment((20.0, [4], [8, 9]))]
    rollout = Trajectory(
        "group-1/0", "group-1", "tools/calc/abc", "tools", "calc", "interleaved", segments, 0.5, "nearly",
        messages, 2.0, {"reward/format": 1.0},
    )  # fmt: skip
    return {"step": 4, "version": 3, **rollout.to_record(), "group_rewards": [0.5, None], **changes}


def test_a_rollout_has_its_text_and_its_tokens():
    made = atif.to_atif(record(), "tiny/agentic_rl")
    assert made.agent.name == "policy" and made.agent.model_name == "tiny/agentic_rl"
    assert [step.source for step in made.steps] == ["user", "agent", "agent", "agent"]
    assert [step.reasoning_content for step in made.steps] == [None, "easy", None, "so"]
    assert made.steps[1].tool_calls[0].arguments == {"e": "1+1"}
    assert made.steps[1].observation.results[0].content == "2"
    metrics = [step.metrics for step in made.steps[1:]]
    assert [m.prompt_token_ids for m in metrics] == [[1, 2], [4], [1, 2, 5, 6, 3]]
    assert [m.completion_token_ids for m in metrics] == [[5, 6], [8, 9], [7]]
    assert [m.logprobs for m in metrics] == [[-0.5, pytest.approx(-0.6)], [-0.8, -0.9], [pytest.approx(-0.7)]]
    assert [(m.prompt_tokens, m.completion_tokens) for m in metrics] == [(2, 2), (1, 2), (5, 1)]
    assert made.extra == {
        "task": "tools/calc/abc", "environment": "tools", "family": "calc", "heldout": False, "reward": 0.5,
        "reason": "nearly", "step": 4, "version": 3, "mode": "interleaved", "group": "group-1",
        "group_rewards": [0.5, None], "seconds": 2.0, "reward/format": 1.0,
    }  # fmt: skip


def test_tokens_of_other_answers_are_given_to_none():
    made = atif.to_atif(record(MESSAGES[:3]), "m")
    assert [step.metrics for step in made.steps] == [None, None]


def test_a_file_a_rollout(tmp_path, capsys):
    stage = tmp_path / "tiny/agentic_rl"
    stage.mkdir(parents=True)
    lines = [
        json.dumps(record()),
        "no JSON",
        json.dumps(record([{"role": "tool"}])),
        json.dumps(record(id="other")),
    ]
    (stage / "trajectories.jsonl").write_text("\n".join(lines) + "\n")
    assert atif.main([str(stage), str(tmp_path / "new/folder")]) == 1
    out, errors = capsys.readouterr()
    assert out.startswith("2 trajectories are in") and errors.startswith("2 lines of")
    files = sorted((tmp_path / "new/folder").iterdir())
    assert [file.name for file in files] == ["00000.json", "00003.json"]
    assert Atif.model_validate_json(files[0].read_text()) == atif.to_atif(record(), "tiny/agentic_rl")
    assert Atif.model_validate_json(files[1].read_text()).session_id == "other"


def test_refusals(tmp_path):
    with pytest.raises(UserError, match="name an artifact of a stage of reinforcement learning"):
        atif.main([str(tmp_path), str(tmp_path / "new")])
    (tmp_path / "trajectories.jsonl").write_text(json.dumps(record()) + "\n")
    for folder, why in ((tmp_path, "File exists"), (tmp_path / "trajectories.jsonl/new", "Not a directory")):
        with pytest.raises(UserError, match=f"cannot be made .{why}.: name a new folder"):
            atif.main([str(tmp_path), str(folder)])
    assert not (tmp_path / "new").exists()
