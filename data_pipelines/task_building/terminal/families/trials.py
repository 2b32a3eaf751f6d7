"""Delivered programs are tried where they were made, on inputs nobody has seen, and tests judge the outcome.

What an agent delivers must not run beside the grader, whose rights it would have. So a collect command of the
task runs it in the agent's own sandbox, in fresh folders, and leaves a record under /logs/artifacts. It knows
inputs and no answers; the tests, in a sandbox of their own, compare the record with the answers. Even an
agent that forged the record would have to do the work.

A trial has ``files`` (text by path, or text and octal mode) and steps. A step is a pair: what is done, and
what must be in the record. ``@`` in a command stands for the trial's folder.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from data_pipelines.task_building.candidate import Rejected

MAX_COMMAND = 100_000  # characters; Linux takes 128 KiB as one argument

COLLECT = """\
mkdir -p /logs/artifacts
cat > /tmp/trials.json <<'END_OF_TRIALS'
<<trials>>
END_OF_TRIALS
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin python3 -I -S - <<'END_OF_PROGRAM'
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path


def put(folder, files):
    for name, content in files.items():
        text, mode = content if isinstance(content, list) else (content, "644")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(int(mode, 8))


def run(folder, step):
    command = [part.replace("@", str(folder)) for part in step["run"]]
    environment = {"PATH": os.environ["PATH"], "HOME": "/tmp", "LC_ALL": "C.UTF-8"}
    try:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, encoding="utf-8", errors="replace", start_new_session=True,
        )
    except OSError as error:
        return {"status": 127, "output": "", "complains": True, "errors": str(error)}
    try:
        output, errors = process.communicate(step.get("input", ""), timeout=10)
    except subprocess.TimeoutExpired:
        return {"status": "no end", "output": "", "complains": False, "errors": ""}
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    record = {"status": process.returncode, "output": output[:20000], "errors": errors[:2000]}
    return {**record, "complains": bool(errors.strip())}


def look(folder, step, times):
    record = {"texts": {}, "modes": {}, "changed": []}
    for name in step["look"]:
        path = folder / name
        record["texts"][name] = path.read_text(errors="replace")[:20000] if path.is_file() else None
        if path.exists():
            state = path.stat()
            record["modes"][name] = format(state.st_mode & 0o7777, "o")
            if times.get(name, state.st_mtime_ns) != state.st_mtime_ns:
                record["changed"].append(name)
            times[name] = state.st_mtime_ns
    return record


def attempt(trial):
    folder = Path(tempfile.mkdtemp(dir="/tmp")) / trial["folder"]
    folder.mkdir()
    put(folder, trial["files"])
    times, record = {}, []
    for step in trial["steps"]:
        if "run" in step:
            record.append(run(folder, step))
        elif "write" in step:
            put(folder, step["write"])
            for name in step["write"]:  # a minute younger than all that was built before
                os.utime(folder / name, (time.time() + 60, time.time() + 60))
            record.append({})
        else:
            record.append(look(folder, step, times))
    return record


given = Path("/tmp/trials.json")
trials = json.loads(given.read_text())
given.unlink()
Path("/logs/artifacts/record.json").write_text(json.dumps([attempt(trial) for trial in trials]))
END_OF_PROGRAM
"""

TESTS = """\
import json
from pathlib import Path

EXPECTED = json.loads(Path("/tests/expected.json").read_text())


def test_every_trial_gives_what_it_should():
    # Written by the task's collect command, which runs what was delivered in the sandbox where it was made.
    record = json.loads(Path("/logs/artifacts/record.json").read_text())
    assert len(record) == len(EXPECTED["trials"]), f"{len(record)} trials"
    for number, (found, wanted) in enumerate(zip(record, EXPECTED["trials"])):
        assert len(found) == len(wanted), f"trial {number} has {len(found)} steps"
        for step, (one, other) in enumerate(zip(found, wanted)):
            for key, value in other.items():
                shown = f"{one.get(key)!r} instead of {value!r} ({one.get('errors', '')})"
                assert one.get(key) == value, f"trial {number}, step {step}: {key} is {shown}"
"""

Step = tuple[dict[str, Any], dict[str, Any]]


@dataclass(frozen=True)
class Trial:
    steps: list[Step]
    files: dict[str, Any] = field(default_factory=dict)
    folder: str = "trial"


def run(
    command: list[str], output: str | None, status: int = 0, text: str = "", complains: bool | None = None
) -> Step:
    """Run a command; ``output`` None: it does not matter."""
    wanted = {"status": status, "output": output, "complains": complains}
    return {"run": command, "input": text}, {key: value for key, value in wanted.items() if value is not None}


def write(files: dict[str, str]) -> Step:
    """Write files and date them a minute ahead."""
    return {"write": files}, {}


def look(
    texts: dict[str, str | None] | None = None, modes: dict[str, str] | None = None, same: bool = False
) -> Step:
    """Texts (None: no such file) and octal modes of files; ``same``: none was written since the last look."""
    wanted: dict[str, Any] = {"texts": texts} if texts is not None else {}
    if modes is not None:
        wanted["modes"] = modes
    if same:
        wanted["changed"] = []
    return {"look": list(texts if texts is not None else modes or {})}, wanted


def collect(trials: list[Trial]) -> str:
    """The collect command of a task: shell text."""
    given = [
        {"folder": trial.folder, "files": trial.files, "steps": [done for done, _ in trial.steps]}
        for trial in trials
    ]
    command = COLLECT.replace("<<trials>>", json.dumps(given, ensure_ascii=False))
    if len(command.encode()) > MAX_COMMAND:
        raise Rejected("the trials are too large for one command")
    return command


def wanted(trials: list[Trial]) -> list[list[dict[str, Any]]]:
    """What TESTS finds as ``trials`` in expected.json."""
    return [[record for _, record in trial.steps] for trial in trials]
