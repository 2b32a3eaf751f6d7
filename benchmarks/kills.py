"""Kill -9 on the way through a whole graph: do the final weights equal those of a run that nobody disturbed?

    python -m benchmarks.kills --recipe smoke

In two fresh clones of the committed state: one run without a server and without interruption; then one
through Prefect in which the training process is killed in the middle of ``pretrain``, the worker in the
middle of ``midtrain`` and the server in the middle of ``dsa_warmup``, started again until it ends well.

Writes ``benchmarks/results/kills.json``; exit status 1 when a weight differs.
"""

import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import psutil

from pipeline.artifacts import hash_file
from pipeline.errors import UserError, run_command
from pipeline.stage import git_commit

RESULT = Path("benchmarks/results/kills.json")
VICTIMS = {
    "pretrain": "trainer",
    "midtrain": "worker",
    "dsa_warmup": "server",
}  # stage -> who is killed in it
CHECKPOINTS = ("pretrain", "midtrain", "dsa_warmup", "dsa_adapt", "sft")
SAVE_EVERY = 2  # steps, so that there is a checkpoint in the middle of each stage
STARTS = 4  # of the disturbed run, at most
SECONDS = 900.0  # for one run


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="smoke")
    recipe = parser.parse_args().recipe
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        straight, disturbed = (
            Clone(Path(folder, "straight"), recipe),
            Clone(Path(folder, "disturbed"), recipe),
        )
        started = time.time()
        straight.run("run")
        seconds_straight = time.time() - started
        started = time.time()
        try:
            kills, starts = disturb(disturbed)
        finally:
            disturbed.stop()
        rows = [
            {"stage": stage, "straight": straight.weights(stage), "disturbed": disturbed.weights(stage)}
            for stage in CHECKPOINTS
        ]
        equal = all(row["straight"] == row["disturbed"] for row in rows)
        result = {
            "date": date.today().isoformat(), "commit": git_commit(), "recipe": recipe,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores", "equal": equal, "kills": kills,
            "starts": starts, "seconds_straight": round(seconds_straight),
            "seconds_disturbed": round(time.time() - started), "sha256_of_weights": rows,
        }  # fmt: skip
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return int(not equal)


class Clone:
    """A clone of this repository in which a recipe runs."""

    def __init__(self, folder: Path, recipe: str):
        self.folder, self.recipe = folder, recipe
        subprocess.run(["git", "clone", "--quiet", ".", folder], check=True, timeout=120)
        ours = ("GLM5_", "PREFECT_", "MLFLOW_")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
        self.environment = {**kept, "PYTHONPATH": str(folder), "GLM5_MLFLOW": "off"}
        self.log = folder.with_suffix(".log")

    def start(self, command: str, *arguments: str) -> subprocess.Popen:
        changes = [f"--set={stage}.save_every_steps={SAVE_EVERY}" for stage in VICTIMS]
        line = [sys.executable, "-m", "flows.cli", command, "--recipe", self.recipe, *arguments, *changes]
        with open(self.log, "a") as log:
            return subprocess.Popen(
                line, cwd=self.folder, env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )

    def run(self, command: str) -> None:
        if self.start(command).wait(SECONDS):
            raise UserError(f"the run in {self.folder} failed:\n{self.log.read_text()[-2000:]}")

    def stop(self) -> None:
        command = [sys.executable, "-m", "flows.cli", "stop"]
        subprocess.run(command, cwd=self.folder, env=self.environment, timeout=120)

    def weights(self, stage: str) -> str:
        return hash_file(self.folder / "artifacts" / self.recipe / stage / "model.safetensors")

    def saved(self, stage: str) -> list[int]:
        """Steps of the finished checkpoints of a stage that runs."""
        folder = self.folder / "runs" / self.recipe / stage / "steps"
        return sorted(int(marker.parent.name) for marker in folder.glob("[0-9]*/done.json"))

    def process(self, victim: str, stage: str) -> int | None:
        """Process id of a victim, or None when it does not run."""
        if victim != "trainer":
            return json.loads((self.folder / ".prefect" / f"{victim}.json").read_text())["pid"]
        for process in psutil.process_iter(["cmdline", "cwd"]):
            line = process.info["cmdline"] or []
            if line[1:3] == ["-m", f"tasks.{stage}"] and process.info["cwd"] == str(self.folder.resolve()):
                return process.pid
        return None


def disturb(clone: Clone) -> tuple[list[dict], int]:
    """Run to the end with all kills. Returns them, and how often the run was started."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    waiting, kills = dict(VICTIMS), []
    for starts in range(1, STARTS + 1):
        watch = clone.start("pipeline", "--port", str(port))
        end = time.monotonic() + SECONDS
        while watch.poll() is None:
            if time.monotonic() > end:
                watch.kill()
                raise UserError(f"the disturbed run did not end: see {clone.log}")
            for stage, victim in list(waiting.items()):
                process = clone.process(victim, stage) if clone.saved(stage) else None
                if process is not None:
                    os.kill(process, signal.SIGKILL)
                    kills.append({"stage": stage, "killed": victim, "after_step": clone.saved(stage)[-1]})
                    del waiting[stage]
            time.sleep(0.1)
        if watch.returncode == 0 and not waiting:
            return kills, starts
    raise UserError(f"the disturbed run did not end well:\n{clone.log.read_text()[-3000:]}")


if __name__ == "__main__":
    run_command(main)
