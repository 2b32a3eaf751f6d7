"""Kept rollouts as traces in a real MLflow store: spans, their times and tokens, and odd texts."""

import json

import mlflow
import pytest
from mlflow import MlflowClient

from pipeline import mlflow_traces
from pipeline.mlflow_traces import log_traces

CALL = {"type": "function", "function": {"name": "calc", "arguments": {"e": "1+2"}}}
ODD = "</script> \u202e \x00 \ud800"
RECORD = {
    "step": 4, "version": 3, "id": "group-9/0", "group": "group-9", "task": "tools/calc/7",
    "environment": "tools", "family": "calc", "mode": "interleaved", "reward": 0.5, "reason": ODD,
    "seconds": 4.0, "group_rewards": [0.5, 0.0], "extra": {"parts/format": 1.0},
    "messages": [
        {"role": "user", "content": ODD},
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "three"},
        {"role": "user", "content": "and now?"},
        {"role": "assistant", "content": "four"},
    ],
    "segments": [
        {
            "ids": [1, 2, 3, 4, 5, 6, 7], "sampled": [False, False, True, True, False, True, True],
            "logprobs": [0, 0, -0.5, -1.5, 0, -0.25, -0.75], "versions": [-1, -1, 2, 3, -1, 3, 3],
            "advantage": [0, 0, 0.1, 0.2, 0, 0.3, 0.4],
            "turns": [
                {"kind": "start", "place": 0, "answer": 2, "began": 1000.0, "ended": 1001.0},
                {"kind": "append", "place": 4, "answer": 5, "began": 1001.5, "ended": 1002.0},
            ],
        },
        {
            "ids": [1, 8, 9], "sampled": [False, True, True], "logprobs": [0, -2.0, -4.0],
            "versions": [-1, 3, 3], "advantage": 0.5,
            "turns": [{"kind": "fork", "place": 0, "answer": 1, "began": 1003.0, "ended": 1004.0}],
        },
    ],
}  # fmt: skip
FAILED = {**RECORD, "segments": [], "messages": [], "reward": None}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A database of its own; MLflow's tracing stays with the first that it is given, until it is reset."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        patch.setenv("MLFLOW_ENABLE_ASYNC_TRACE_LOGGING", "false")
        mlflow.tracing.reset()
        yield MlflowClient(uri)
    mlflow.tracing.reset()


@pytest.fixture
def store(client, tmp_path):
    """Client, experiment and run."""
    experiment = client.create_experiment(tmp_path.name, artifact_location=(tmp_path / "artifacts").as_uri())
    return client, experiment, client.create_run(experiment).info.run_id


def traces(store, tmp_path, *records):
    client, experiment, run = store
    file = tmp_path / "trajectories.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    log_traces(client, experiment, run, file)
    return client.search_traces(locations=[experiment], run_id=run, order_by=["timestamp_ms ASC"])


def test_a_trajectory_is_a_trace(store, tmp_path):
    trace, failed = traces(store, tmp_path, RECORD, FAILED)
    assert (trace.info.request_time, trace.info.execution_duration) == (1_000_000, 4000)
    assert trace.info.tags.items() >= {"family": "tools/calc", "step": "4", "reward": "0.5"}.items()
    assert trace.info.token_usage == {"input_tokens": 2 + 5 + 1, "output_tokens": 6, "total_tokens": 14}
    root, *spans = trace.data.spans
    seconds = [(s.name, s.span_type, s.start_time_ns / 1e9, s.end_time_ns / 1e9) for s in spans]
    assert sorted(seconds, key=lambda span: span[2:]) == [
        ("turn 1", "CHAT_MODEL", 1000.0, 1001.0),
        ("calc", "TOOL", 1001.0, 1001.5),
        ("calc", "TOOL", 1001.0, 1001.5),
        ("turn 2", "CHAT_MODEL", 1001.5, 1002.0),
        ("turn 3", "CHAT_MODEL", 1003.0, 1004.0),
        ("verdict", "EVALUATOR", 1004.0, 1004.0),
    ]
    assert {span.parent_id for span in spans} == {root.span_id}
    first, second, third = (next(s for s in spans if s.name == f"turn {n}") for n in (1, 2, 3))
    assert first.attributes["token_ids"] == [3, 4] and first.attributes["versions"] == [2, 3]
    assert (first.attributes["logprob_mean"], first.attributes["advantage"]) == (-1.0, [0.1, 0.2])
    assert (second.attributes["join"], second.outputs["content"]) == ("append", "three")
    assert (third.attributes["join"], third.attributes["segment"], third.attributes["advantage"]) == (
        "fork", 1, 0.5,
    )  # fmt: skip
    assert third.inputs == {"messages": [{"role": "user", "content": "and now?"}]}
    assert [s.outputs for s in spans if s.name == "calc"] == ["3", None]  # the second was not carried out
    assert root.attributes["sampled_by_versions"] == [2, 3] and root.attributes["group_rewards"] == [0.5, 0.0]
    assert root.outputs["parts/format"] == 1.0 and root.outputs["reason"].startswith("</script>")
    assert (trace.info.state, failed.info.state) == ("OK", "ERROR")
    assert [span.name for span in failed.data.spans] == ["tools/calc", "verdict"]


def test_many_are_thinned_and_the_run_says_so(store, tmp_path, monkeypatch):
    monkeypatch.setattr(mlflow_traces, "MOST_TRACES", 3)
    found = traces(store, tmp_path, *({**FAILED, "step": step} for step in range(9)))
    assert sorted(trace.info.tags["step"] for trace in found) == ["0", "4", "8"]
    client, _, run = store
    assert client.get_run(run).data.tags["traces"] == "3 of 9 kept trajectories"


def test_nothing_kept_is_nothing_logged(store, tmp_path):
    client, experiment, run = store
    log_traces(client, experiment, run, tmp_path / "trajectories.jsonl")
    assert "traces" not in client.get_run(run).data.tags
