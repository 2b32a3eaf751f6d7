"""The whole loop with real processes: steps, new weights, resume, and every process killed once."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from environments.catalog import environments
from tasks.rl.group import Group, Spool
from tasks.rl.trajectory import Segment, Trajectory
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[3]
# A run as a stage would start it, from the folder that its settings stand in.
PROGRAM = """
import json, sys
from pathlib import Path
import torch
from model.hub import load_folder
from model.chat.tokenizer import Tokenizer
from pipeline.recipe.rl import RlSection
from pipeline.stage import Context
from pipeline.progress import Progress
from pipeline.tracking import Metrics
from tasks.rl.groups import normalised
from tasks.rl.losses.icepop import IcePop
from tasks.rl.losses.double_sided import DoubleSided
from tasks.rl.selection import by_reward
from tasks.rl.trainer import RlJob, train_policy
from tasks.rl.worker import ServiceConfig

torch.set_num_threads(1)
settings = json.loads(Path(sys.argv[1]).read_text())
scratch, start = Path(settings["scratch"]), Path(settings["checkpoint"])
section = RlSection(**settings["section"])
context = Context("reasoning_rl", None, section, 5, {}, {}, scratch / "out", scratch, "", Progress(scratch,
"reasoning_rl"),
    Metrics(scratch, "r", "reasoning_rl", "0" * 64, {}, {}))
model = load_folder(start)
loss = DoubleSided() if section.rollouts.ahead else IcePop()
services = [ServiceConfig(**service) for service in settings["services"]]
try:
    values = train_policy(RlJob(context, model, start, 0, services, loss,
    by_reward(section, normalised)))
finally:
    torch.save(model.state_dict(), scratch / "end.pt")
(scratch / "values.json").write_text(json.dumps(values))
"""


@pytest.fixture(scope="module")
def settings(guesser, tmp_path_factory):
    """Yes-or-no questions for a model that guesses."""
    tasks = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    catalog = environments()
    with open(tasks, "w") as file:
        for seed in range(20):
            record = catalog["graph"].make_task("reach", seed).to_record()
            file.write(json.dumps({**record, "mode": "off"}) + "\n")
    return {
        "checkpoint": str(guesser),
        "services": [{"name": "reach", "weight": 1.0, "tasks": str(tasks)}],
        "section": {
            "optimizer": {"muon_lr": 0.001, "adamw_lr": 0.001}, "families": {"graph/reach": 1.0},
            "modes": {"off": 1.0}, "sequence_length": 128, "micro_batch": 2, "save_every_steps": 2,
            "rollouts": {"prompts_per_step": 3, "rollouts_per_prompt": 4, "max_new_tokens": 8, "engines": 1},
        },
    }  # fmt: skip


def start(settings, scratch, steps=4, **rollouts):
    scratch.mkdir(parents=True, exist_ok=True)
    section = {
        **settings["section"], "steps": steps, "rollouts": {**settings["section"]["rollouts"], **rollouts}
    }  # fmt: skip
    path = scratch / "settings.json"
    path.write_text(json.dumps({**settings, "section": section, "scratch": str(scratch)}))
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    with open(scratch / "log.txt", "a") as log:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(path)], stdout=log, stderr=log, env=environment
        )


def finish(process, scratch):
    status = process.wait(PATIENCE)
    assert status == 0, (scratch / "log.txt").read_text()
    return torch.load(scratch / "end.pt", weights_only=True)


def assert_close(one, other):
    """Up to rounding: an engine's sums depend on the requests that it happens to read together."""
    assert all(torch.allclose(one[key], other[key], atol=1e-4) for key in one)


def trained(scratch):
    """Indices of the groups that were trained on, from the last checkpoint."""
    from tasks.training.checkpoint import load_latest

    return load_latest(scratch, torch.device("cpu"))["done"]


@pytest.fixture(scope="module")
def straight(settings, tmp_path_factory):
    """The folder of a run that nothing disturbed, after one that was killed before its first checkpoint: it
    left a step's rollouts, a line without end, a damaged group and one of weights that no longer are.
    """
    scratch = tmp_path_factory.mktemp("straight")
    (scratch / "trajectories.jsonl").write_text('{"step": 0}\n{"step\n')
    segment = Segment()
    segment.read([1, 2])
    segment.sample([3], [-0.5], [7])
    lost = Trajectory(
        "group-1/0",
        "group-1",
        "graph/reach/0",
        "graph",
        "reach",
        "off",
        segments=[segment],
        reward=1.0,
        reason="",
    )
    Spool(scratch / "spool").put(Group(1, [lost] * 4))
    (scratch / "spool/00000002.npz").write_bytes(b"PK\3\4 and no more")
    finish(start(settings, scratch), scratch)
    return scratch


def test_steps_push_weights(straight):
    scratch = straight
    assert trained(scratch) == list(range(12)) and not Spool(scratch / "spool").indices()
    rows = [json.loads(line) for line in (scratch / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    lines = [json.loads(line) for line in (scratch / "trajectories.jsonl").read_text().splitlines()]
    versions = {line["step"]: {v for s in line["segments"] for v in s["versions"]} - {-1} for line in lines}
    assert versions == {0: {0}, 1: {1}, 2: {2}, 3: {3}}
    times = [json.loads(line) for line in (scratch / "steps.jsonl").read_text().splitlines()]
    assert [[rollout[2] for rollout in line["rollouts"]] for line in times] == [[n] * 12 for n in range(4)]
    for line, row in zip(times, rows, strict=True):
        assert line["seconds"] == {name: row[name] for name in line["seconds"]}
        updated = line["ended"] - line["seconds"]["perf/update_s"] - line["seconds"]["perf/push_s"]
        assert all(began < ended < updated + 0.1 for began, ended, _, _ in line["rollouts"])
    assert all(row["off_policy/age_max"] == row["off_policy/age_mean"] == 0 for row in rows)
    learnt = [row for row in rows if "train/loss" in row]
    assert learnt and all(row["mismatch_kl"] < 1e-6 and row["optim/grad_norm"] > 0 for row in learnt)
    assert all(0 < row["reward/graph/reach"] < 1 for row in learnt)


def test_a_killed_trainer_goes_on_as_if_nothing_had_been(settings, straight, tmp_path):
    killed = tmp_path / "killed"
    process = start(settings, killed)
    wait_until(lambda: list(killed.glob("steps/00000002/done.json")), "the first checkpoint")
    process.kill()
    process.wait()
    found = finish(start(settings, killed), killed)
    assert_close(found, torch.load(straight / "end.pt", weights_only=True))
    assert trained(killed) == list(range(12))
    for name in ("metrics.jsonl", "trajectories.jsonl", "steps.jsonl"):
        steps = [
            [json.loads(line)["step"] for line in (folder / name).read_text().splitlines()]
            for folder in (straight, killed)
        ]
        assert steps[0] == steps[1]


@pytest.mark.slow
def test_killed_engines_and_workers_are_started_again(settings, tmp_path):
    """Rollouts run ahead; the run ends with the right steps, and no group is lost or trained on twice.

    Some agents are programs of their own. The worker, and with it the gateway that they speak to, is killed
    as one of them begins; it ends with it.
    """
    scratch, agents = tmp_path / "run", tmp_path / "agents.txt"
    agents.touch()
    program = [sys.executable, "-I", "-S", str(ROOT / "tests/tasks/rl/yes_agent.py"), str(agents)]
    outside = {**settings["services"][0], "name": "outside", "weight": 0.4, "program": program}
    settings = {**settings, "services": [*settings["services"], outside]}
    process = start(settings, scratch, steps=8, engines=2, ahead=2, max_staleness=4)

    def begun():
        return [line.split() for line in agents.read_text().splitlines() if line.startswith("began")]

    def wait_for(event, what):
        wait_until(lambda: event() or process.poll() is not None, what)

    wait_for((scratch / "steps/00000002/done.json").exists, "a checkpoint")
    before = len(begun())
    wait_for(lambda: len(begun()) > before, "an agent")
    os.kill(child_of(process.pid, "tasks.rl.worker"), signal.SIGKILL)
    wait_for((scratch / "steps/00000004/done.json").exists, "a checkpoint")
    os.kill(child_of(process.pid, "model.inference.server"), signal.SIGKILL)
    finish(process, scratch)
    ports = list(dict.fromkeys(address.rsplit("/sessions/")[0] for _, _, address in begun()))
    assert len(ports) == 2 and before, "agents spoke to the first gateway, and to the second"
    assert not [pid for _, pid, _ in begun() if alive(pid)]
    assert trained(scratch) == list(range(24)) and not Spool(scratch / "spool").indices()
    log = (scratch / "log.txt").read_text()
    assert "had died and was started again" in log and "the rollout worker is started again" in log
    rows = [json.loads(line) for line in (scratch / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert max(row["off_policy/age_max"] for row in rows) <= 3


def alive(pid):
    """Whether a process runs an agent of this test."""
    try:
        return b"yes_agent" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def child_of(pid, words):
    """The process of that command line that the trainer started."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if fields[1] == str(pid) and words in (path / "cmdline").read_text().replace("\0", " "):
                return int(path.name)
        except OSError:
            continue
    raise AssertionError(f"no {words} among the children of {pid}")


def test_sigterm_saves_and_ends(settings, tmp_path):
    scratch = tmp_path / "run"
    process = start(settings, scratch, steps=400)
    wait_until(
        lambda: (scratch / "metrics.jsonl").exists() and (scratch / "metrics.jsonl").read_text(), "a step"
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 1 and "start it again to go on" in (scratch / "log.txt").read_text()
    assert list(scratch.glob("steps/*/done.json"))
