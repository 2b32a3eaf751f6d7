"""A Docker engine of the tests' own, and base images made without a registry.

The engine is private: its own socket, data and containerd in one folder, no bridge, no firewall rules. All
processes of one test run (pytest-xdist) share it; the last one to finish ends it by its process id.
"""

import contextlib
import fcntl
import io
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.environments.sandbox.base_image import CannotMake, base_image
from tests.waiting import PATIENCE

PREFIX = "sandbox-engine-"
IMAGES = ("python:3.11-slim-bookworm", "debian:bookworm")
PYTHON_PATH = "/usr/local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Unavailable(Exception):
    """Why no engine runs here."""


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[str]:
    """The URL of an engine with ``IMAGES``; the test is skipped, and says why, where none can run."""
    try:
        with shared_engine() as url:
            yield url
    except Unavailable as error:
        pytest.skip(str(error))


@contextlib.contextmanager
def shared_engine() -> Iterator[str]:
    """Start the engine of this test run, or join it."""
    _check_host()
    _end_leftovers()
    folder = Path(tempfile.gettempdir()) / f"{PREFIX}{_test_run()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with _locked(folder) as users:
        if users == 0:
            _start_with_images(folder)
        _write_users(folder, users + 1)
    try:
        yield f"unix://{folder}/docker.sock"
    finally:
        with _locked(folder) as users:
            _write_users(folder, users - 1)
            if users == 1:
                end_engine(folder)
                shutil.rmtree(folder)


def own_folder() -> Path:
    """An empty folder for an engine of this process alone; what is left there ends with the next test run."""
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))


def start_engine(folder: Path, data: Path | None = None) -> str:
    """Start dockerd with all its files in ``folder`` and wait until it answers; its URL.

    The path of ``folder`` must be short: that of a socket has at most 107 bytes.
    """
    url = f"unix://{folder}/docker.sock"
    command = [
        "dockerd", "--iptables=false", "--bridge=none", "--data-root", str(data or folder / "data"),
        "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid"), "--host", url,
    ]  # fmt: skip
    log = folder / "log"
    with log.open("wb") as output:
        # DOCKER_TMPDIR and the like of the caller are not this engine's.
        environment = {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "HOME": str(folder)}
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment,
            start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + PATIENCE
    while not _answers(url):
        if process.poll() is not None or time.monotonic() > deadline:
            end_engine(folder)
            last = (log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            raise Unavailable(f"dockerd does not start here: {last[-300:]}")
        time.sleep(0.05)
    return url


def end_engine(folder: Path) -> None:
    """End the engine of ``folder`` with its containers, and unmount what it left."""
    _end_engine(folder)
    _kill_rest(folder)
    for line in reversed(Path("/proc/mounts").read_text().splitlines()):
        if (mounted := line.split()[1]).startswith(f"{folder}/"):
            subprocess.run(["umount", "-l", mounted], check=True, timeout=PATIENCE)


def _kill_rest(folder: Path) -> None:
    """Kill the containerd and the shims of a dockerd that was killed itself."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"containerd" in words[0] and any(os.fsencode(folder / "exec") in word for word in words):
                os.kill(int(process.name), signal.SIGKILL)


def _end_engine(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
        pid = int((folder / "pid").read_text())
        if str(folder) not in Path(f"/proc/{pid}/cmdline").read_text():
            return
        with (
            contextlib.suppress(docker.errors.DockerException),
            connect(f"unix://{folder}/docker.sock") as client,
        ):
            for container in client.containers.list(all=True, ignore_removed=True):
                container.remove(force=True)
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        while _lives(pid):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


@contextlib.contextmanager
def connect(url: str) -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(base_url=url, timeout=int(PATIENCE))
    try:
        yield client
    finally:
        client.close()


def import_images(url: str, archive: Path) -> None:
    """Give the engine ``IMAGES``, both with the files of ``archive``."""
    python, debian = IMAGES
    dockerfile = f"FROM {debian}\nENV PATH={PYTHON_PATH} LANG=C.UTF-8\nCMD python3\n"
    with connect(url) as client:
        repository, tag = debian.split(":")
        client.api.import_image_from_file(str(archive), repository, tag, changes=['CMD ["bash"]'])
        client.images.build(fileobj=io.BytesIO(dockerfile.encode()), tag=python, rm=True)


def _check_host() -> None:
    if os.geteuid() != 0:
        raise Unavailable("needs root to start a Docker engine")
    if not shutil.which("dockerd", path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
        raise Unavailable("no dockerd here: apt-get install docker.io")


def _start_with_images(folder: Path) -> None:
    try:
        archive = base_image(folder / "base.tar")
        import_images(start_engine(folder), archive)
        archive.unlink()
    except BaseException as error:
        end_engine(folder)
        shutil.rmtree(folder)
        if isinstance(error, CannotMake):
            raise Unavailable(str(error)) from None
        raise


def _answers(url: str) -> bool:
    try:
        with connect(url) as client:
            return client.ping()
    except docker.errors.DockerException:
        return False
    except OSError:
        return False


def _test_run() -> int:
    """The process that all workers of this run have in common."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def _end_leftovers() -> None:
    """End the engines of test runs that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if not _lives(int(folder.name.removeprefix(PREFIX).split("-")[0])):
            # The other process of this run may be at it, too, and have removed it.
            with contextlib.suppress(FileNotFoundError), _locked(folder):
                end_engine(folder)
                shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    """Whether a process runs: one that ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Alone with the folder; yields how many processes use the engine."""
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        users = folder / "users"
        yield int(users.read_text()) if users.exists() else 0


def _write_users(folder: Path, number: int) -> None:
    (folder / "users").write_text(str(number))
