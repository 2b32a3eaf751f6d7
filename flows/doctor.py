"""``glm5 doctor``: what this machine has and lacks for the pipeline, and how to get what is missing."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pipeline import artifacts

# What recipe tiny takes, as the README says: artifacts, DVC copies of them and checkpoints beside the 2 GiB
# of packages; the largest stage together with server, worker and MLflow.
DISK_GIB = 3
MEMORY_GIB = 3
SECONDS_TO_IMPORT = 600.0
CUDA_ADVICE = (
    'remove .venv and install the CPU build: make pipeline PIP_ARGS="--extra-index-url <PyTorch cpu index>"'
)
INSTALL = "make pipeline installs it (pip install --no-deps -r requirements.lock)"


@dataclass(frozen=True)
class Finding:
    """One check. ``needed``: the pipeline cannot run without it. ``advice`` is for when it fails."""

    name: str
    good: bool
    value: str
    needed: bool = True
    advice: str = ""


def examine() -> Iterator[Finding]:
    """All checks, one after the other."""
    version = platform.python_version()
    right = (3, 11) <= sys.version_info[:2] <= (3, 12)
    yield Finding(
        "Python", right, version, advice="install Python 3.11 or 3.12 and give PYTHON=/its/path to make"
    )
    yield _packages()
    yield _torch()
    yield _gpu()
    yield _importable("prefect", "make pipeline; `glm5 run` does without it", needed=False)
    yield _importable("dvc", "versions of data and models; `glm5 run` does without it", needed=False)
    yield _importable("mlflow", "curves in a browser; metrics.jsonl is always written", needed=False)
    git = shutil.which("git")
    yield Finding("git", git is not None, git or "not found", False, "install git; DVC and records need it")
    repository = Path(".dvc/config").exists() and Path(".git").exists()
    state = "this folder is one" if repository else "this folder is none"
    yield Finding("DVC repository", repository, state, False, "clone with git, or run without DVC: glm5 run")
    yield _sandbox()
    yield _space()
    yield _memory()
    yield _server()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    yield Finding("Chromium", chromium is not None, chromium or "not found", False,
                  "apt-get install chromium; the browser tests and environment slides need it")  # fmt: skip


def print_report() -> int:
    """Print all findings. Returns 1 when something is missing that the pipeline cannot run without."""
    bad = False
    for finding in examine():
        mark = "ok" if finding.good else "MISSING" if finding.needed else "without"
        bad = bad or (finding.needed and not finding.good)
        advice = "" if finding.good else f" -> {finding.advice}"
        print(f"{mark:8}{finding.name:16}{finding.value}{advice}", flush=True)
    return int(bad)


def _packages() -> Finding:
    lock = Path("requirements.lock")
    if not lock.exists():
        return Finding(
            "packages", False, "requirements.lock is not here", advice="run this from the repository's root"
        )
    wrong = []
    for line in lock.read_text().splitlines():
        match = re.match(r"([\w.-]+)==([^\s;#]+)", line)
        if match:
            installed = _version(match.group(1))
            if installed is None or installed.partition("+")[0] != match.group(2):
                wrong.append(f"{match.group(1)} {installed or 'missing'} (want {match.group(2)})")
    if not wrong:
        return Finding("packages", True, "as in requirements.lock")
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return Finding("packages", False, f"{', '.join(wrong[:3])}{more}", needed=False, advice=INSTALL)


def _importable(package: str, use: str, needed: bool = True) -> Finding:
    version = _version(package) if importlib.util.find_spec(package) else None
    return Finding(package, version is not None, version or "not installed", needed, f"{INSTALL}; {use}")


def _torch() -> Finding:
    """Whether torch really imports: a CUDA build that pip took without its libraries does not."""
    version = _version("torch")
    if version is None:
        return Finding("torch", False, "not installed", advice=f"{INSTALL}; runs every training stage")
    command = [sys.executable, "-c", "import torch"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_TO_IMPORT)
    except subprocess.TimeoutExpired:
        found = f"{version}, which took more than {SECONDS_TO_IMPORT:.0f} s to import"
        return Finding("torch", False, found, advice="look at what else this machine does")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return Finding("torch", False, f"{version} cannot be imported: {reason}", advice=CUDA_ADVICE)
    return Finding("torch", True, version)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpu() -> Finding:
    """Asks the driver's files, not torch, whose import takes seconds."""
    cards = sorted(Path("/proc/driver/nvidia/gpus").glob("*"))
    return Finding("GPU", bool(cards), f"{len(cards)} NVIDIA" if cards else "none", False,
                   "recipes smoke and tiny need none")  # fmt: skip


def _sandbox() -> Finding:
    """Asks the environments themselves, in a process of their own: one is started to find out."""
    command = [sys.executable, "-m", "environments.command", "sandbox"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_TO_IMPORT)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1].removeprefix("error: ")
        return Finding("sandbox", False, reason, advice="stage agent_tasks needs one: install bubblewrap")
    return Finding("sandbox", True, done.stdout.strip())


def _space() -> Finding:
    free = shutil.disk_usage(artifacts.root()).free / 2**30
    return Finding(
        "disk", free > DISK_GIB, f"{free:.0f} GiB free",
        advice=f"recipe tiny takes {DISK_GIB} GiB beside the packages: free some space",
    )  # fmt: skip


def _memory() -> Finding:
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    enough = size > 0.9 * MEMORY_GIB  # the kernel keeps a part of what is built in
    found = f"{size:.0f} GiB, {os.cpu_count()} cores"
    return Finding("memory", enough, found, False, f"recipe tiny takes {MEMORY_GIB} GiB")


def _server() -> Finding:
    if importlib.util.find_spec("psutil") is None:
        return Finding("Prefect server", False, "not installed", False, INSTALL)
    from flows import server

    api = server.address()
    return Finding("Prefect server", api is not None, api or "not running", False, "make pipeline starts it")
