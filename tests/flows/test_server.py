"""How server, worker and deploying start, also after a start that was stopped, and what is then noted."""

import subprocess
import sys

import pytest

from flows import server
from pipeline.errors import UserError
from tests.waiting import PATIENCE

API = "http://127.0.0.1:1/api"  # nothing answers there
WAITING = ["-c", "import sys; sys.stdin.readline()"]  # ends when its standard input closes


@pytest.fixture
def here(bare, monkeypatch):
    """The miniature repository as working folder, without a server's address."""
    monkeypatch.chdir(bare)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    server.HOME.mkdir()
    server.LOGS.mkdir(parents=True)
    return bare


@pytest.mark.parametrize(("told", "status"), [("", 1), ("\n", 0)])
def test_a_command_of_prefect_goes_on_when_it_is_told(here, environment, told, status):
    done = subprocess.run(
        [sys.executable, *server.WHEN_TOLD, "--version"], env=environment, input=told, capture_output=True,
        text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert ("not told to go on" in done.stderr) == (status == 1)
    assert bool(done.stdout) == (status == 0)


def test_a_server_that_another_start_left_is_waited_for_and_not_started_twice(here):
    left = server._spawn("server", WAITING, API, subprocess.PIPE)
    try:
        assert server._start_server(None) == API
        with pytest.raises(UserError, match="already runs at"):
            server._start_server(4321)
    finally:
        left.communicate()
    with pytest.raises(UserError, match="the Prefect server ended at once"):
        server.Starting(API, True, None, None, "").wait()


def deploying(code: str) -> subprocess.Popen:
    with open(server.log_of("deploy"), "w") as log:
        return subprocess.Popen([sys.executable, "-c", code], stdout=log, stderr=log)


def test_what_is_noted_as_deployed_is_what_was_read_at_the_start(here, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", API)
    digest = server._deployment_digest()
    starting = server.Starting(API, False, None, deploying("pass"), digest)
    (here / "prefect.yaml").write_text((here / "prefect.yaml").read_text() + "# changed during the run\n")
    starting.deployed()
    assert server.DEPLOYED.read_text() == digest != server._deployment_digest()


def test_deploying_that_failed_is_one_sentence_and_not_noted(here):
    starting = server.Starting(API, False, None, deploying("raise SystemExit('no such pool\\n')"), "digest")
    with pytest.raises(UserError, match="prefect deploy failed: no such pool"):
        starting.deployed()
    assert not server.DEPLOYED.exists()


def test_a_given_server_that_does_not_answer_is_one_sentence(bare, glm5):
    done = glm5(bare, "pipeline", "collect", PREFECT_API_URL=API)
    glm5(bare, "stop")
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"error: the Prefect server at {API} does not answer"), done.stdout
    assert last.endswith("start it, or unset PREFECT_API_URL") and "Traceback" not in done.stdout
