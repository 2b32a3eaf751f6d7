"""The Prefect server and worker of this clone: started when none answers, they outlive the runs.

Everything of theirs lies in ``.prefect/`` (database, pid files) and ``runs/prefect/`` (logs). When
``PREFECT_API_URL`` is set, that server is used and only the worker is started here.
"""

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import psutil

from flows.ports import HOST, free_port
from pipeline.errors import UserError
from pipeline.recipe.load import recipe_names

POOL = "local"
SECONDS_TO_START = 900.0  # bounds a hang: one that ends is noticed at once
SECONDS_TO_ANSWER = 60.0  # a busy machine is slow, and a closed port refuses at once
SECONDS_OF_DOUBT = 0.5
HOME = Path(".prefect")
DEPLOYED = HOME / "deployed"  # the digest of what this clone deployed last
LOGS = Path("runs/prefect")
WHEN_TOLD = ("-m", "flows.when_told")
# Nothing is sent anywhere; a worker looks for work often enough that a run starts at once.
SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_WORKER_QUERY_SECONDS": "2",
    # In memory, the default, the place of a stage that ran while the server was killed would stay taken.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    # Clients keep a connection for 25 s. A server that closes it before makes their next request fail and be
    # tried again after seconds, which every stage that trains would wait for.
    "PREFECT_SERVER_API_KEEPALIVE_TIMEOUT": "60",
    "PREFECT_CLI_PROMPT": "false",
}


@dataclass
class Starting:
    """Processes that load Prefect side by side; the server's clients go on when they are told."""

    api: str  # address of the server's API
    own: bool  # this clone's server, and not one that PREFECT_API_URL names
    worker: subprocess.Popen | None  # None where one runs already
    deploying: subprocess.Popen | None  # None where this server has what prefect.yaml says
    digest: str  # of what is deployed

    def wait(self) -> None:
        """Until the server answers and the worker asks it. Raises ``UserError`` when one of them ended."""
        deadline = time.monotonic() + SECONDS_TO_START
        while self.own and not _answers(self.api):
            if _alive(_read("server")) is None:
                raise UserError(f"the Prefect server ended at once: see {log_of('server')}")
            if time.monotonic() > deadline:
                raise UserError(
                    f"the Prefect server does not answer at {self.api}: see {log_of('server')}; "
                    "`make stop` ends it"
                )
            time.sleep(0.3)
        if self.worker is not None:
            _let_work(self.worker)

    def deploy(self) -> None:
        """Let ``prefect.yaml`` be deployed, the full pipeline first; the server must have the pool."""
        with contextlib.suppress(OSError):  # it ended: ``deployed`` says why
            self.deploying.stdin.write("\n")
            self.deploying.stdin.close()

    def deployed(self) -> None:
        """Wait until all is deployed. Raises ``UserError`` where that failed."""
        if self.deploying is None:
            return
        try:
            self.deploying.wait(SECONDS_TO_START)
        except subprocess.TimeoutExpired:
            raise UserError(f"prefect deploy did not end in {SECONDS_TO_START:.0f} s: start again") from None
        if self.deploying.returncode:
            said = log_of("deploy").read_text().splitlines()
            last = next((line for line in reversed(said) if line.strip()), "")
            raise UserError(f"prefect deploy failed: {last.strip()} (see {log_of('deploy')})")
        DEPLOYED.write_text(self.digest)  # not of the files as they are by now


def start(port: int | None = None) -> Starting:
    """Start server, worker and what deploys, as far as they are needed, and wait for none of them. Sets the
    environment that Prefect reads when it is imported.

    Raises ``UserError`` when ``port`` is taken by something else or the worker is another server's.
    """
    HOME.mkdir(exist_ok=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    given = os.environ.get("PREFECT_API_URL")
    api = given or _start_server(port)
    os.environ.update(environment(api))
    worker = _start_worker() if _needs_worker() else None
    digest = _deployment_digest()
    return Starting(api, not given, worker, _start_deploying(digest), digest)


def stop() -> list[str]:
    """End the worker and the server that this clone started. Returns what was ended."""
    ended = []
    for name in ("worker", "server"):
        process = _alive(_read(name))
        if process is not None:
            _end(process)
            ended.append(f"{name} (process {process.pid})")
        (HOME / f"{name}.json").unlink(missing_ok=True)
    return ended


def environment(api: str) -> dict[str, str]:
    """Settings for every process of Prefect that belongs to this clone."""
    paths = [os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **SETTINGS,
        "PREFECT_HOME": str(HOME.absolute()),
        "PREFECT_API_URL": api,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, paths))),
    }


def address() -> str | None:
    """The API of this clone's running server, or None."""
    state = _read("server")
    if _alive(state) is None or not _answers(state["api"]):
        return None
    return state["api"]


def log_of(name: str) -> Path:
    return LOGS / f"{name}.log"


def mark() -> str:
    """The tag of flow runs whose processes belong to this clone on this machine."""
    return f"{socket.gethostname()}:{os.getcwd()}"


def ensure_worker() -> bool:
    """Start a worker when none asks this server for work. Returns whether it did."""
    if not _needs_worker():
        return False
    _let_work(_start_worker())
    return True


def _needs_worker() -> bool:
    """A worker of a server that is gone is ended; one whose server answers may have runs, so it is left alone
    and ``UserError`` says what to do.
    """
    api, state = os.environ["PREFECT_API_URL"], _read("worker")
    process = _alive(state)
    if process is None:
        return True
    if state["api"] == api:
        return False
    if _answers(state["api"]):
        raise UserError(
            f"this clone's worker asks the server at {state['api']} for work and not the one at {api}: "
            "`make stop` ends it, or set PREFECT_API_URL to its server"
        )
    _end(process)
    return True


def _end(process: psutil.Process) -> None:
    process.terminate()
    with contextlib.suppress(psutil.TimeoutExpired):
        process.wait(40)
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def _start_server(port: int | None) -> str:
    """The address of this clone's server: the one that runs, which may not answer yet, else a new one's."""
    state = _read("server")
    if _alive(state) is not None:
        api = state["api"]
        if port is not None and not api.endswith(f":{port}/api"):
            raise UserError(f"this clone's Prefect server already runs at {api}: `make stop` ends it")
        return api
    port = free_port(port)
    api = f"http://{HOST}:{port}/api"
    command = ["-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
    _spawn("server", command, api, subprocess.DEVNULL)
    return api


def _start_worker() -> subprocess.Popen:
    """One that waits for ``_let_work``."""
    command = [*WHEN_TOLD, "worker", "start", "--pool", POOL, "--type", "process", "--name", "local"]
    return _spawn("worker", command, os.environ["PREFECT_API_URL"], subprocess.PIPE)


def _let_work(worker: subprocess.Popen) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):  # which is what a worker should do: go on
        worker.communicate("\n", SECONDS_OF_DOUBT)
    if worker.poll() is not None:
        raise UserError(f"the Prefect worker ended at once: see {log_of('worker')}")


def _start_deploying(digest: str) -> subprocess.Popen | None:
    """What deploys, once it is told; None when this server has just what it would deploy."""
    if DEPLOYED.exists() and DEPLOYED.read_text() == digest:
        return None
    with open(log_of("deploy"), "w") as log:
        return subprocess.Popen(
            [sys.executable, *WHEN_TOLD, "--no-prompt", "deploy", "--all"], stdin=subprocess.PIPE,
            stdout=log, stderr=subprocess.STDOUT, text=True, process_group=0,  # Ctrl-C is not for it
        )  # fmt: skip


def _spawn(name: str, command: list[str], api: str, stdin: int) -> subprocess.Popen:
    with open(log_of(name), "a") as log:
        process = subprocess.Popen(
            [sys.executable, *command], env={**os.environ, **environment(api)}, stdin=stdin, stdout=log,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
    started = psutil.Process(process.pid).create_time()
    state = {"pid": process.pid, "started": started, "api": api}
    (HOME / f"{name}.json").write_text(json.dumps(state))
    return process


def _read(name: str) -> dict | None:
    try:
        return json.loads((HOME / f"{name}.json").read_text())
    except (OSError, ValueError):
        return None


def _alive(state: dict | None) -> psutil.Process | None:
    """The process that a pid file means, unless it has ended and its number is another process's."""
    if state is None:
        return None
    try:
        process = psutil.Process(state["pid"])
        same = abs(process.create_time() - state["started"]) < 1.0
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _answers(api: str) -> bool:
    try:
        with urllib.request.urlopen(f"{api}/health", timeout=SECONDS_TO_ANSWER) as reply:
            return reply.status == 200
    except OSError:
        return False


def _deployment_digest() -> str:
    files = [Path("prefect.yaml"), Path("dvc.yaml"), *sorted(Path(__file__).parent.glob("*.py"))]
    parts = [
        os.environ["PREFECT_API_URL"],
        os.getcwd(),
        *recipe_names(),
    ]
    digest = hashlib.sha256("\n".join(parts).encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()
