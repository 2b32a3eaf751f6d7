"""What only bubblewrap has: layers on disk, control groups, life without root, the death of the parent."""

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from pathlib import Path

import pytest

from environments.sandbox import cgroups, choose
from environments.sandbox.choose import open_backend
from environments.sandbox.interface import ImageError, Limits
from environments.sandbox.layers import Layers
from environments.sandbox.phase import complaint, started
from pipeline.errors import UserError
from tests.environments.sandbox.conftest import SMALL
from tests.environments.sandbox.host import groups, processes_with
from tests.waiting import PATIENCE, wait_until

REPOSITORY = Path(__file__).resolve().parents[3]

PROGRAM = """
import asyncio, sys
from pathlib import Path
from environments.sandbox.choose import open_backend
from environments.sandbox.interface import Limits

async def main(cache, context, sleeping):
    backend = open_backend("bubblewrap", Path(cache))
    image = await backend.build(Path(context))
    limits = Limits(memory_mb=256, processes=64, disk_mb=32)
    async with await backend.start(image, limits) as sandbox:
        if sleeping:
            await sandbox.run(f"setsid nohup sleep {sleeping} & (sleep {sleeping}; true) & true")
            print("sleeping", flush=True)
            await sandbox.run(f"sleep {sleeping}", seconds=1e6)
        await sandbox.write("/app/given", b"given", 0o640)
        seen = "id -u; cat made given; stat -c %a given; touch /usr/x || echo read-only"
        result = await sandbox.run(seen)
        full = await sandbox.run("head -c 64M /dev/zero > big; rm big")
        fork = "import os, time\\nfor _ in range(200): os.fork() or time.sleep(1000)"
        many = await sandbox.run(f"python3 -c '{fork}'", seconds=900)
        await sandbox.end_processes()
        hog = await sandbox.run("python3 -c 'x = bytearray(1_500_000_000); print(\\"held\\")'")
        await sandbox.end_processes()
        await sandbox.run("chmod 000 given; mkdir closed; echo x > closed/file; chmod 000 closed")
        limited = "No space" in full.output or full.returncode > 128, "unavailable" in many.output
        calm = await sandbox.run("echo calm")
        print(result.output, *limited, "held" in hog.output, calm.output, await sandbox.read("/app/made"))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def backend(bubblewrap):
    return bubblewrap


@pytest.fixture
def context(tmp_path):
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM debian:bookworm\nWORKDIR /app\nRUN echo made > made\n")
    return folder


@pytest.fixture
def folder_for_all():
    """A folder that any user can reach; pytest closes its own to others whenever one of its runs begins."""
    with tempfile.TemporaryDirectory(prefix="sandbox-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def start_program(tmp_path, context, sleeping: str, python=sys.executable, prefix=()) -> subprocess.Popen:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [*prefix, python, "-c", PROGRAM, str(tmp_path / "cache"), str(context), sleeping],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    )  # fmt: skip


def test_when_this_process_is_killed_all_inside_dies(bubblewrap, tmp_path, context):
    seconds = f"{10**8 + uuid.uuid4().int % 10**8}"
    program = start_program(tmp_path, context, seconds)
    assert program.stdout.readline() == "sleeping\n"
    wait_until(lambda: len(processes_with(f"sleep\0{seconds}")) >= 3, "the sandbox's processes")
    program.kill()
    program.wait()
    wait_until(lambda: not processes_with(seconds), "the end of all processes of the sandbox")
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    if left := groups(program.pid):
        hierarchies = cgroups.find()  # as the next start does
        assert hierarchies is not None and groups(program.pid) == [], left


@pytest.mark.skipif(os.geteuid() != 0, reason="runs as root alone: who is not root runs all tests so")
def test_without_root_it_works_and_limits_hold(bubblewrap, folder_for_all, context):
    """As a user who cannot read the Python of these tests: the system's runs it."""
    python = "/usr/bin/python3"
    if not Path(python).exists():
        pytest.skip("no Python of the system that another user could run")
    folder, context = folder_for_all, shutil.copytree(context, folder_for_all / "context")
    (folder / "cache").mkdir()
    os.chown(folder / "cache", 65534, 65534)
    drop = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--")
    reachable = subprocess.run(
        [*drop, python, "-c", f"import os; os.listdir({str(REPOSITORY)!r})"], capture_output=True
    )
    if reachable.returncode:
        pytest.skip("another user cannot read this repository")
    program = start_program(folder, context, "", python, drop)
    said = program.communicate(timeout=PATIENCE)[0]
    seen = "0\nmade\ngiven640\ntouch: cannot touch '/usr/x': Read-only file system\nread-only\n"
    assert said == f"{seen} True True False calm\n {b'made' + bytes([10])}\n"


def test_tasks_that_begin_alike_share_layers(bubblewrap, tmp_path):
    def make(name: str, last: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "data.txt").write_text("the same")
        (folder / "Dockerfile").write_text(f"FROM python:3.12\nWORKDIR /app\nCOPY data.txt .\nRUN {last}\n")
        return folder

    async def build():
        return await asyncio.gather(*(bubblewrap.build(make(f"{n}", f"echo {n} > n")) for n in range(4)))

    chains = [bubblewrap._layers.chain(image.name) for image in asyncio.run(build())]
    assert len({chain[0] for chain in chains}) == 4 and len({tuple(chain[1:]) for chain in chains}) == 1


def test_a_changed_file_makes_another_layer_and_its_mode_counts(bubblewrap, tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM python:3.11-slim\nCOPY run.sh /run.sh\n")
    names = set()
    for content, mode in (("a", 0o644), ("b", 0o644), ("b", 0o755), ("b", 0o755)):
        (tmp_path / "run.sh").write_text(content)
        (tmp_path / "run.sh").chmod(mode)
        names.add(asyncio.run(bubblewrap.build(tmp_path)).name)
    assert len(names) == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("FROM alpine:3", "FROM alpine:3 is not known"),
        ("FROM debian:bookworm\nUSER nobody", "line 2: USER nobody"),
    ],
)
def test_what_bubblewrap_cannot_do_is_refused_by_name(bubblewrap, tmp_path, line, words):
    (tmp_path / "Dockerfile").write_text(line + "\n")
    with pytest.raises(ImageError, match=words):
        asyncio.run(bubblewrap.build(tmp_path))


def test_a_step_that_fails_leaves_no_layer_and_no_draft(bubblewrap, tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM debian:bookworm\nRUN echo half > /half && false\n")
    layers = bubblewrap._layers.folder
    for _ in range(2):
        with pytest.raises(ImageError, match="line 2: RUN ended with 1"):
            asyncio.run(bubblewrap.build(tmp_path))
    assert list(layers.glob("draft-*")) == [] and list(layers.glob("*/tree/half")) == []


def test_drafts_of_the_dead_are_removed_and_those_of_the_living_kept(tmp_path):
    layers = Layers(tmp_path, os.geteuid())
    dead, living = layers.folder / "draft-dead", layers.folder / "draft-living"
    for draft in (dead, living):
        (draft / "tree/closed").mkdir(parents=True)
        (draft / "tree/closed").chmod(0)
    lock = os.open(living, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    Layers(tmp_path, os.geteuid())
    os.close(lock)
    assert not dead.exists() and living.exists()


def test_a_layer_made_twice_at_once_is_one_layer(tmp_path):
    layers = Layers(tmp_path, os.geteuid())
    with layers.draft() as one, layers.draft() as other:
        (one / "tree/who").write_text("one")
        (other / "tree/who").write_text("other")
        layers.publish(one, "key", ["below"])
        layers.publish(other, "key", ["below"])
    assert (layers.folder / "key/tree/who").read_text() == "one" and layers.chain("key") == ["key", "below"]
    assert os.listdir(layers.folder) == ["key"]


def test_a_holder_s_reports_are_read_in_any_mixture():
    report = '{ "child-pid": 4242, "net-namespace": 1 }\n'
    for cut in (
        0,
        len('{ "child-pid": 4242'),
        len('{ "child-pid": 4242,'),
        len(report),
    ):  # it writes whole parts
        assert started(report[:cut] + "ready\n" + report[cut:]) == 4242
    assert (
        started(report) is None and started("ready\n") is None and started('ready { "child-pid": 42') is None
    )
    assert (
        complaint("ready\nunshare failed: Operation not permitted\n")
        == "unshare failed: Operation not permitted"
    )


def test_choosing_a_backend_says_why_not(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no sandbox backend 'chroot'"):
        open_backend("chroot", tmp_path)
    monkeypatch.setitem(choose.NEEDED, "no-such-program", "a-package")
    with pytest.raises(UserError, match="install the package a-package"):
        open_backend("bubblewrap", tmp_path)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(UserError, match="a-package.*Docker"):
        open_backend(None, tmp_path)


@pytest.fixture
def hierarchies():
    return cgroups.find() or pytest.skip("no control groups that this user may write")


def test_a_cpu_s_share_is_kept(backend, context, hierarchies):
    image = asyncio.run(backend.build(context))
    program = (
        "import time; t = time.monotonic(); c = time.process_time()\n"
        "while time.monotonic() < t + 3: pass\nprint((time.process_time() - c) / 3)"
    )

    async def act():
        async with await backend.start(image, Limits(memory_mb=256, cpus=0.25)) as sandbox:
            return float((await sandbox.run(f"python3 -c '{program}'")).output)

    assert asyncio.run(act()) < 0.4


def test_groups_of_dead_processes_are_swept(backend, hierarchies):
    sleeper = subprocess.Popen(["sleep", "1000"])
    group = hierarchies.make(SMALL)
    dead = []
    for folder in group.all():
        left = folder.with_name(f"{2**22 - 1}-1-0")
        left.mkdir()
        (left / "cgroup.procs").write_text(str(sleeper.pid))
        dead.append(left)
    hierarchies.sweep()
    assert not any(left.exists() for left in dead) and all(folder.is_dir() for folder in group.all())
    assert sleeper.wait(PATIENCE) == -signal.SIGKILL
    group.remove()


def test_groups_of_version_2_are_killed_but_for_one():
    """Freeze, kill and thaw, on whatever hierarchy of version 2 there is, controllers or not."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    tops = [line.split()[4] for line in lines if " - cgroup2 " in line]
    folder = Path(tops[0] if tops else "/nowhere", f"glm5-test-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control groups of version 2 that this user may write: {error}")
    try:
        spared, *others = [subprocess.Popen(["sh", "-c", "while :; do sleep 0.01; done"]) for _ in range(4)]
        for process in (spared, *others):
            (folder / "cgroup.procs").write_text(str(process.pid))
        cgroups.kill(folder, spared.pid)
        assert [process.wait(PATIENCE) for process in others] == [-signal.SIGKILL] * 3
        assert spared.poll() is None
        spared.kill()
        spared.wait()
    finally:
        cgroups.kill(folder)
        wait_until(lambda: not (folder / "cgroup.procs").read_text(), "an empty group")
        folder.rmdir()


def test_a_start_that_is_given_up_leaves_no_control_group(backend, context, hierarchies, monkeypatch):
    made, given_up, make = [], threading.Event(), cgroups.Hierarchies.make

    def make_late(self, limits):
        given_up.wait(PATIENCE)
        made.append(make(self, limits))
        return made[-1]

    async def give_up():
        image = await backend.build(context)
        monkeypatch.setattr(cgroups.Hierarchies, "make", make_late)
        starting = asyncio.create_task(backend.start(image, SMALL))
        await asyncio.sleep(0)
        starting.cancel()
        given_up.set()
        await asyncio.wait([starting])
        assert starting.cancelled()
        while not made:
            await asyncio.sleep(0)

    asyncio.run(give_up())
    assert not [folder for folder in made[0].all() if folder.exists()]
