"""Parts of the report by hand: rollouts, gains, conduct, contamination, FLOPs, protocol, charts, numbers."""

import json
import re

import pytest

from model.config import PRESETS, ModelConfig
from tasks.reporting import formats, rollouts
from tasks.reporting.charts import Series, axis_labels, line_chart, smooth, thin, ticks
from tasks.reporting.conduct import conduct
from tasks.reporting.contamination import prompt
from tasks.reporting.cost import flops
from tasks.reporting.facts import Facts, StageFacts
from tasks.reporting.formats import operations
from tasks.reporting.gains import gains
from tasks.reporting.highlights import stage_numbers
from tasks.reporting.rollouts import Span, lanes, last_steps, overlap
from tasks.reporting.scores import Scores
from tasks.reporting.timeline import reduced_edges, timeline

SHAPE = ModelConfig(**PRESETS["tiny"])


def step(number: int, ended: float, spans: list, waited: float = 1.0) -> dict:
    seconds = {"perf/rollout_s": waited, "perf/select_s": 0.0, "perf/update_s": 0.75, "perf/push_s": 0.25}
    return {
        "step": number,
        "ended": ended,
        "seconds": seconds,
        "rollouts": [[*span, number, 9] for span in spans],
    }


def test_spans_take_the_first_free_lane():
    spans = [Span(0, 3, 0), Span(0, 1, 0), Span(1, 2, 0), Span(1.5, 4, 0), Span(3, 5, 0)]
    assert lanes(spans) == [0, 1, 1, 2, 0]


@pytest.mark.parametrize("name", ["w4a8", "w8a8"])
def test_the_number_of_quantising_is_that_of_the_model_itself(name):
    metrics = {"perplexity_chat/float": 3.0, f"perplexity_chat_change/{name}": 0.0125}
    facts = Facts("tiny", {"quantize": StageFacts("quantize", "", (), {}, metrics, {})}, {})
    assert stage_numbers(facts, Scores.read(None)) == {"quantize": "+1.25% perplexity on chats"}


def test_stages_that_make_tasks_say_how_many():
    made = {
        "agent_tasks": {"tasks/kept": 2, "tasks/families": 2},
        "search_tasks": {"search/documents": 166, "search/tasks": 18},
        "rl_tasks": {"tasks/total": 5994, "tasks/families": 17},
    }
    stages = {name: StageFacts(name, "", (), {}, metrics, {}) for name, metrics in made.items()}
    assert stage_numbers(Facts("tiny", stages, {}), Scores.read(None)) == {
        "agent_tasks": "2 tasks kept",
        "search_tasks": "18 questions kept",
        "rl_tasks": "5,994 tasks",
    }


def ran(name: str, **times: float) -> StageFacts:
    return StageFacts(name, "", (), times, {}, {})


def test_the_bar_of_an_interrupted_stage_ends_where_it_ended():
    stages = {
        "a": ran("a", started=1000.0, ended=1100.0, seconds=100.0),
        # Killed after 290 s, it went on at 5000 for 10 s.
        "b": ran("b", started=5000.0, ended=5010.0, seconds=300.0),
        "c": ran("c", started=5010.0, seconds=100.0),  # a record from before ends were kept
    }
    rows = timeline(Facts("tiny", stages, {}), {})[:3]
    assert [(row.left, row.width) for row in rows] == [(0.0, 20.0), (20.0, 60.0), (80.0, 20.0)]


def test_the_number_of_a_training_stage_says_of_what_it_is():
    stages = {
        name: StageFacts(name, "", (), {}, {"val/loss": 2.5, **more}, {})
        for name, more in (("pretrain", {"val/bpb": 1.5}), ("midtrain", {"val/bpb": 1.25}), ("sft", {}))
    }
    assert stage_numbers(Facts("tiny", stages, {}), Scores.read(None)) == {
        "pretrain": "1.500 bits per byte of validation documents",
        "midtrain": "1.250 bits per byte of validation sequences",
        "sft": "loss 2.500 on validation chats",
    }


def test_overlap_is_the_share_of_updates_and_pushes_with_rollouts_under_way():
    turns = [step(0, 2.0, [(0.0, 1.0)]), step(1, 4.0, [(2.0, 3.0)])]
    assert overlap(turns) == 0.0
    ahead = [step(0, 2.0, [(0.0, 1.0), (0.5, 1.5)]), step(1, 4.0, [(1.25, 3.0)])]
    assert overlap(ahead) == pytest.approx(0.5)  # the whole of 1 to 2, nothing of 3 to 4
    assert overlap([]) is None


def test_the_picture_holds_whole_steps_from_the_last_one_back(tmp_path):
    steps = [step(n, 2.0 * (n + 1), [(2.0 * n, 2.0 * n + 1)] * 3) for n in range(5)]
    assert [s["step"] for s in last_steps(steps, 7)] == [3, 4]
    assert [s["step"] for s in last_steps(steps, 1)] == [4]  # one at least
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    facts = Facts("tiny", {}, {"agentic_rl": tmp_path})
    found = rollouts.rollouts(facts, "agentic_rl")
    assert (found["first"], found["last"], found["steps"], found["rollouts"]) == (1, 5, 5, 15)
    bars = re.findall(r'class="v(\d)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', found["svg"])
    assert [int(shade) for shade, *_ in bars] == [0] * 3 + [1] * 3 + [0] * 3 + [1] * 3 + [0] * 3
    scale = (rollouts.WIDTH - rollouts.LEFT - rollouts.RIGHT) / 10  # ten seconds
    assert all(float(x) == pytest.approx(rollouts.LEFT + 2 * scale, abs=0.06) for _, x, *_ in bars[3:6])
    assert all(float(width) == pytest.approx(scale, abs=0.06) for *_, width in bars)
    assert found["svg"].count("var(--c3)") == found["svg"].count("var(--c4)") == 5  # updates and pushes


@pytest.mark.parametrize("text", ["{", '{"step": 0}\n', "[]\n"])
def test_times_that_cannot_be_read_are_named(tmp_path, text):
    facts = Facts("tiny", {}, {"agentic_rl": tmp_path})
    assert rollouts.rollouts(facts, "agentic_rl") == {} and facts.missing == []  # an older artifact
    (tmp_path / "steps.jsonl").write_text(text)
    assert rollouts.rollouts(facts, "agentic_rl") == {}
    assert facts.missing == ["agentic_rl/steps.jsonl cannot be read: its timeline is left out"]


def score(checkpoint: str, name: str, value: float, n: int = 20, suite: str = "environments") -> dict:
    bounds = {"low": value - 0.1, "high": value + 0.1}
    return {
        "checkpoint": checkpoint,
        "suite": suite,
        "name": name,
        "value": value,
        "n": n,
        "protocol": suite,
        **bounds,
    }


def changed(name: str, change: float, low: float, high: float) -> dict:
    about = {"before": "sft", "after": "distill", "suite": "environments", "n": 20}
    return {**about, "name": name, "change": change, "low": low, "high": high}


ROWS = [
    score(checkpoint, name, value, n)
    for checkpoint, name, value, n in (
        ("sft", "exact/off", 0.5, 40), ("distill", "exact/off", 0.6, 40),
        ("sft", "conduct/repetition", 0.25, 40), ("distill", "conduct/repetition", 0.05, 40),
        ("distill", "safety/refused", 1.0, 8),
    )
]  # fmt: skip
CHANGES = [
    changed("exact/off", 0.1, -0.02, 0.2), changed("exact/all/a/x", 0.4, 0.1, 0.6),
    changed("exact/all/a/y", -0.3, -0.5, -0.1), changed("exact/all/a/z", 0.1, -0.1, 0.3),
    changed("exact/all/b/x", 0.5, 0.2, 0.7), changed("exact/all/b/y", 0.0, -0.1, 0.1),
]  # fmt: skip


def test_families_are_gained_and_forgotten_where_the_interval_leaves_no_doubt():
    [stage] = gains(Scores.read({"rows": ROWS, "changes": CHANGES}))
    assert [name for name, _ in stage["gained"]] == ["b/x", "a/x"]  # the largest first
    assert [name for name, _ in stage["forgot"]] == ["a/y"]
    assert (stage["unclear"], stage["equal"], stage["families"]) == (1, 1, 5)
    [row] = stage["rows"]
    assert (row["from"]["value"], row["to"]["value"], row["verdict"]) == (0.5, 0.6, "even")


def test_a_quantised_checkpoint_is_no_stage_that_gains_or_forgets():
    content = {"rows": ROWS, "changes": CHANGES, "beside_parent": CHANGES}
    assert gains(Scores.read(content)) == []


def test_conduct_is_counted_by_checkpoint():
    loops, refused = conduct(Scores.read({"rows": ROWS}))
    assert [(cell["count"], cell["n"]) for cell in loops["cells"]] == [("10", 40), ("2", 40)]
    assert refused["cells"][0] is None and refused["cells"][1]["count"] == "8"


def test_the_hash_of_the_protocol_is_that_of_all_suites_but_the_arena():
    scores = Scores.read({"rows": ROWS})
    more = Scores.read({"rows": [*ROWS, score("distill", "rating", 1000.0, suite="arena")]})
    assert scores.protocol_hash("distill") == more.protocol_hash("distill") != ""
    other = Scores.read({"rows": [*ROWS, score("distill", "all", 2.0, suite="bits_per_byte")]})
    assert other.protocol_hash("distill") != scores.protocol_hash("distill")
    assert scores.protocol_hash("nobody") == ""


def test_a_prompt_is_all_that_stands_before_the_first_answer():
    asked = [{"role": "system", "content": "be  brief"}, {"role": "user", "content": "1+1=\n"}]
    later = [{"role": "assistant", "content": "2"}, {"role": "user", "content": "and 3?"}]
    assert prompt(asked) == prompt([*asked, *later]) == "be brief\n1+1="


def record(tokens: int, section: dict, name: str = "midtrain", **metrics: float) -> dict:
    return {"sections": {name: section}, "facts": {"tokens": tokens}, "metrics": metrics}


def test_flops_follow_from_shape_tokens_and_lengths():
    contexts = [{"sequence_length": 256, "tokens": 300}, {"sequence_length": 512, "tokens": 100}]
    section = {"contexts": contexts, "mtp": {"every_steps": 4}}
    expected = 600 * SHAPE.training_flops_per_token(256, mtp=0.25) + 200 * SHAPE.training_flops_per_token(
        512, mtp=0.25
    )
    assert flops("midtrain", record(800, section), SHAPE) == pytest.approx(expected)
    section = {"sequence_length": 128}
    sft = 50 * SHAPE.training_flops_per_token(128, "sparse")
    assert flops("sft", record(50, section, "sft"), SHAPE) == pytest.approx(sft)
    warmup = 50 * SHAPE.forward_flops_per_token(128, indexer=True)
    assert flops("dsa_warmup", record(50, section, "dsa_warmup"), SHAPE) == pytest.approx(warmup)
    # Sampled once; what was learnt from is trained on at three times that.
    forward, counts = SHAPE.forward_flops_per_token(128, "sparse"), {"train/tokens": 70}
    found = flops("distill", record(0, section, "distill", **counts, **{"train/learnt_tokens": 20}), SHAPE)
    assert found == pytest.approx((70 + 3 * 20) * forward)
    assert flops("distill", record(0, section, "distill", **counts), SHAPE) == pytest.approx(70 * forward)
    assert flops("curate", record(50, {}, "curate"), SHAPE) is None
    assert flops("pretrain_data", record(50, {"tokens": 50}, "pretrain_data"), SHAPE) is None


def test_operations():
    values = (None, 0, 987, 999.9, 2e6, 4.31e8, 999.7e9, 4.5e12, 1.234e18, 9.99e29)
    assert [operations(value) for value in values] == [
        "–", "0", "987", "1 k", "2 M", "431 M", "1 T", "4.5 T", "1.23 E", "9.99e+05 Y",
    ]  # fmt: skip


def test_reduced_edges_keep_the_order_and_nothing_else():
    inputs = {"a": (), "b": ("a",), "c": ("a", "b"), "d": ("a", "c"), "e": ("b", "d")}
    assert sorted(reduced_edges(inputs)) == [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")]


def test_charts():
    assert ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert ticks(1.5, 1.9) == pytest.approx([1.5, 1.6, 1.7, 1.8, 1.9])
    assert axis_labels([7.6501, 7.6502, 7.6503]) == ["7.6501", "7.6502", "7.6503"]
    assert axis_labels([0.00021, 0.00022]) == ["2.1e-4", "2.2e-4"]
    assert axis_labels([0.0, 2000.0, 4000.0]) == ["0", "2k", "4k"]
    steps = line_chart([Series("loss", [(1, 8.0), (2, 2.0), (3, 4.0)])])
    assert re.findall(r'text-anchor="middle">([^<]+)<', steps) == ["1", "2", "3"]
    assert thin([(n, 2.0 * n) for n in range(1600)])[0] == (4.5, 9.0)
    assert smooth([(n, 3.0) for n in range(50)])[-1] == (49, pytest.approx(3.0))
    assert line_chart([Series("one point", [(1, 1.0)])]) == ""
    svg = line_chart([Series("loss", [(0, 8.0), (10, 2.0), (20, 4.0)])])
    heights = [float(y) for _, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", svg)]
    assert heights[0] < heights[2] < heights[1]  # a higher loss stands higher


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.42, "0.4 s"), (9.97, "10 s"), (59.7, "1 min"), (200, "3 min 20 s"), (7500, "2 h 05 min")],
)
def test_durations(seconds, text):
    assert formats.duration(seconds) == text


def test_nearly_all_is_not_all():
    assert [formats.score(value, "share") for value in (1.0, 0.9974, 0.93, 0.004, 0.0)] == [
        "100 %", "99.7 %", "93 %", "0.4 %", "0 %",
    ]  # fmt: skip
