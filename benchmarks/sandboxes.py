"""How fast sandboxes start, alone and with 64 alive, and what thousands of episodes leave behind.

    python -m benchmarks.sandboxes --episodes 10000

Starts are measured to the end of a first command (``true``), so nothing is put off: one after another, one
after another beside others that are alive, and all at the same moment. Then short episodes (start, write a
file, run a command on it, read its result, end all processes, close), 64 at a time, with processes, mounts,
control groups, files and open descriptors counted before and after.

Writes ``benchmarks/results/sandboxes.json``; exit status 1 when an episode failed or something was left.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path

import psutil

from environments.sandbox.choose import open_backend
from environments.sandbox.interface import Backend, Image, Limits, Sandbox
from pipeline.errors import run_command
from pipeline.stage import git_commit

RESULT = Path("benchmarks/results/sandboxes.json")
LIMITS = Limits(memory_mb=256, cpus=1.0, processes=64, disk_mb=32)
DOCKERFILE = "FROM python:3.11-slim-bookworm\nWORKDIR /app\nRUN echo ready > state\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="bubblewrap")
    parser.add_argument("--starts", type=int, default=100, help="one after another")
    parser.add_argument("--alive", type=int, default=64, help="at once")
    parser.add_argument("--episodes", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sandboxes-") as folder:
        result = asyncio.run(measure(Path(folder), arguments))
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return int(bool(result["episodes"]["failed"] or any(result["left"].values())))


async def measure(folder: Path, arguments: argparse.Namespace) -> dict:
    backend = open_backend(arguments.backend, folder / "cache")
    context = folder / "image"
    context.mkdir()
    (context / "Dockerfile").write_text(DOCKERFILE)
    image = await backend.build(context)
    for _ in range(3):  # programs and files come into memory
        await one_after_another(backend, image, 1)
    before = count(folder)
    report = {
        "date": date.today().isoformat(),
        "commit": git_commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "backend": backend.name,
        "limits": getattr(backend, "enforced", "the engine's own"),
        "alone": await one_after_another(backend, image, arguments.starts),
    }
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(arguments.alive):
            await stack.enter_async_context(await backend.start(image, LIMITS))
        report[f"beside_{arguments.alive}"] = await one_after_another(backend, image, arguments.starts)
    report[f"{arguments.alive}_at_once"] = await at_once(backend, image, arguments.alive)
    report["episodes"] = await play(backend, image, arguments.episodes, arguments.alive)
    after = count(folder)
    report["counted"] = {"before": before, "after": after}
    report["left"] = {name: max(0, after[name] - before[name]) for name in before}
    return report


async def one_after_another(backend: Backend, image: Image, number: int) -> dict:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN), resource.getrusage(resource.RUSAGE_SELF)
    starts, ready = [], []
    for _ in range(number):
        began = time.perf_counter()
        async with await backend.start(image, LIMITS) as sandbox:
            starts.append(time.perf_counter() - began)
            await first_command(sandbox)
            ready.append(time.perf_counter() - began)
    now = resource.getrusage(resource.RUSAGE_CHILDREN), resource.getrusage(resource.RUSAGE_SELF)
    cpu = sum(b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime for a, b in zip(spent, now, strict=True))
    return {
        "start_ms": summary(starts),
        "first_command_ms": summary(ready),
        "cpu_ms": round(1e3 * cpu / number, 1),
    }


async def at_once(backend: Backend, image: Image, number: int) -> dict:
    """All asked for at the same moment, each kept until the last one is there."""
    everyone = asyncio.Barrier(number)

    async def one() -> float:
        async with await backend.start(image, LIMITS) as sandbox:
            await first_command(sandbox)
            ready = time.perf_counter() - began
            await everyone.wait()
            return ready

    began = time.perf_counter()
    return {"first_command_ms": summary(await asyncio.gather(*(one() for _ in range(number))))}


async def first_command(sandbox: Sandbox) -> None:
    result = await sandbox.run("true")
    if result.returncode:
        raise RuntimeError(f"a first command failed: {result.output}")


async def play(backend: Backend, image: Image, number: int, together: int) -> dict:
    """``number`` episodes, ``together`` at a time."""
    numbers, failures = iter(range(number)), []

    async def worker() -> None:
        for episode in numbers:
            try:
                await play_one(backend, image, episode)
            except Exception as error:  # counted, and the first ones are shown
                failures.append(f"{type(error).__name__}: {error}")

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(together)))
    seconds = time.perf_counter() - began
    return {
        "played": number,
        "failed": len(failures),
        "first_failures": failures[:3],
        "seconds": round(seconds, 1),
        "per_second": round(number / seconds, 1),
    }


async def play_one(backend: Backend, image: Image, episode: int) -> None:
    async with await backend.start(image, LIMITS) as sandbox:
        await sandbox.write("/app/given", f"{episode}".encode())
        result = await sandbox.run("sleep 300 & echo $(cat state given) > made", seconds=300)
        await sandbox.end_processes()
        made = await sandbox.read("/app/made")
        if result.returncode or made != f"ready {episode}\n".encode():
            raise RuntimeError(f"status {result.returncode}, made {made!r}, said {result.output!r}")


def count(folder: Path) -> dict[str, int]:
    """What sandboxes of this process hold on the host."""
    groups = [Path("/sys/fs/cgroup/glm5-sandboxes"), *Path("/sys/fs/cgroup").glob("*/glm5-sandboxes")]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "processes": len(psutil.Process().children(recursive=True)) + orphans(),
        "mounts": sum(" sandbox " in line for line in mounts),
        "control_groups": sum(
            len(list(group.glob(f"{os.getpid()}-*"))) for group in groups if group.is_dir()
        ),
        "files": sum(1 for _ in folder.rglob("*")),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def orphans() -> int:
    """Bubblewraps that belong to nobody any more."""
    found = (process.info for process in psutil.process_iter(["name", "ppid"]))
    return sum(info["name"] == "bwrap" and info["ppid"] == 1 for info in found)


def summary(seconds: list[float]) -> dict:
    ordered = sorted(1e3 * second for second in seconds)
    return {
        "number": len(ordered),
        "median": round(statistics.median(ordered), 1),
        "p95": round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 1),
    }


if __name__ == "__main__":
    run_command(main)
