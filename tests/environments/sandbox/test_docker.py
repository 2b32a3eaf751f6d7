"""What only Docker has: limits, leftovers, an engine that may go away. The contract is in test_sandbox."""

import asyncio
import functools
import http.server
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from environments.sandbox.disk_watch import DiskWatch
from environments.sandbox.docker import docker_backend
from environments.sandbox.execution import NOT_RUNNING
from environments.sandbox.interface import ImageError, Limits, SandboxError
from environments.sandbox.leftovers import OWNER_LABEL, owner
from pipeline.errors import UserError
from tests.environments.sandbox.base_image import base_image
from tests.environments.sandbox.conftest import has_quotas
from tests.environments.sandbox.docker_engine import (  # noqa: F401 - with a fixture
    connect,
    docker_engine,
    end_engine,
    own_folder,
    start_engine,
)
from tests.waiting import PATIENCE, wait_until

FROM = "FROM python:3.11-slim-bookworm\n"
SMALL = Limits(memory_mb=256, processes=64, disk_mb=32)


@pytest.fixture
def backend(docker_engine, monkeypatch):  # noqa: F811
    monkeypatch.setenv("DOCKER_HOST", docker_engine)
    return docker_backend()


@pytest.fixture
def build(backend, tmp_path):
    """``build("RUN ...", name="content")``: an image of a folder with these files."""

    def build(lines: str = "", base: str = FROM, **files: str):
        folder = tmp_path / "context"
        folder.mkdir(exist_ok=True)
        (folder / "Dockerfile").write_text(base + lines)
        for name, content in files.items():
            (folder / name).write_text(content)
        return asyncio.run(backend.build(folder))

    return build


def inside(backend, image, action, limits: Limits = SMALL):
    """What ``await action(sandbox)`` returns for a fresh sandbox."""

    async def play():
        async with await backend.start(image, limits) as sandbox:
            return await action(sandbox)

    return asyncio.run(play())


def ours(backend) -> set[str]:
    """The containers of this process: others use the engine, too."""
    found = backend.engine.api.containers(all=True, filters={"label": f"{OWNER_LABEL}={owner()}"})
    return {container["Id"] for container in found}


def exists(backend, identity: str) -> bool:
    return bool(backend.engine.api.containers(all=True, filters={"id": identity}))


def test_every_limit_is_given_to_the_engine_and_nothing_is_left(backend, build):
    async def look(sandbox):
        told = backend.engine.api.inspect_container(sandbox.identity)
        seen = await sandbox.run("cat /proc/self/status; ls /sys/class/net")
        assert ours(backend) == {sandbox.identity}
        return told["HostConfig"], seen.output

    limits = Limits(memory_mb=200, cpus=0.5, processes=50, disk_mb=32)
    config, seen = inside(backend, build(), look, limits)
    assert config["Memory"] == config["MemorySwap"] == 200 * 2**20
    assert (config["NanoCpus"], config["PidsLimit"]) == (500_000_000, 50)
    assert (config["NetworkMode"], config["Privileged"]) == ("none", False)
    assert (config["CapDrop"], config["CapAdd"]) == (["ALL"], None)
    assert config["SecurityOpt"] == ["no-new-privileges"]
    assert not config["Binds"]
    fields = dict(line.split(":\t", 1) for line in seen.splitlines() if ":\t" in line)
    assert {int(fields[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert seen.endswith("\nlo\n")
    assert ours(backend) == set()


KILLED_PARENT = """\
import asyncio, sys
from pathlib import Path
from environments.sandbox.docker import docker_backend
from environments.sandbox.interface import Limits

async def main():
    backend = docker_backend()
    sandbox = await backend.start(await backend.build(Path(sys.argv[1])), Limits())
    print(sandbox.identity, flush=True)
    await sandbox.run("sleep 1000", seconds=1000)

asyncio.run(main())
"""


def test_containers_of_a_killed_parent_are_removed_at_the_next_start(backend, build, tmp_path):
    image = build()
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED_PARENT, str(tmp_path / "context")], stdout=subprocess.PIPE, text=True
    )
    try:
        orphan = child.stdout.readline().strip()
        assert docker_backend() and exists(backend, orphan)  # its parent lives
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(PATIENCE)
        child.stdout.close()

    async def start_another(sandbox):
        docker_backend()
        # Where another process is just removing it, this one does not wait for that.
        wait_until(lambda: not exists(backend, orphan), "the removal of the orphan")
        return exists(backend, sandbox.identity)

    assert inside(backend, image, start_another)


def test_pip_reaches_an_index_in_a_build_and_nothing_in_a_sandbox(backend, build, tmp_path):
    index = tmp_path / "index" / "tiny"
    index.mkdir(parents=True)
    with zipfile.ZipFile(index / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "answer = 42\n")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr(
            "tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "index")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        image = build(f"RUN pip install --no-cache-dir --index-url {url} tiny==1.0\n")
        program = f"import tiny, urllib.request as u\nprint(tiny.answer)\nu.urlopen('{url}', timeout=5)"
        result = inside(backend, image, lambda sandbox: sandbox.run(f'python3 -c "{program}"'))
        server.shutdown()
    assert result.returncode == 1
    assert "42\n" in result.output
    assert "URLError" in result.output


def test_the_same_content_is_built_once(backend, build):
    one = build("COPY file /file\n", file="1")
    created = backend.engine.api.inspect_image(one.name)["Created"]
    assert build("COPY file /file\n", file="1") == one
    assert backend.engine.api.inspect_image(one.name)["Created"] == created
    other = build("COPY file /file\n", file="2")
    assert other.name != one.name
    assert inside(backend, other, lambda sandbox: sandbox.read("/file")) == b"2"


def test_two_builds_of_the_same_content_at_once(backend, build, tmp_path):
    image = build("RUN date +%s%N > /made\n")
    backend.engine.api.remove_image(image.name)

    async def twice():
        return await asyncio.gather(*(backend.build(tmp_path / "context") for _ in range(4)))

    assert set(map(repr, asyncio.run(twice()))) == {repr(image)}


@pytest.mark.parametrize(
    ("base", "lines", "words"),
    [
        (
            FROM,
            "RUN echo first words; exit 3\n",
            ["RUN echo first words; exit 3", "code: 3", "'first words'"],
        ),
        (FROM, "COPY nothing /x\n", ["COPY nothing /x"]),
        (FROM, "ADD http://127.0.0.1/x /x\n", ["line 2", "ADD"]),
        ("FROM nowhere.invalid/nothing:1\n", "", ["FROM nowhere.invalid/nothing:1"]),
        (FROM, "USER nosuchuser\nRUN true\n", ["nosuchuser"]),
    ],
)
def test_why_an_image_cannot_be_built_is_one_sentence(build, base, lines, words):
    with pytest.raises(ImageError) as error:
        build(lines, base)
    message = str(error.value)
    assert [word for word in words if word not in message] == []
    assert "\n" not in message and len(message) < 1000


def test_no_signal_ends_the_first_process_and_orphans_leave_no_zombies(backend, build):
    async def attack(sandbox):
        first = backend.engine.api.inspect_container(sandbox.identity)["State"]["Pid"]
        await sandbox.run("for i in {1..100}; do (true & ); done; for i in {1..64}; do kill -$i 1; done")
        await sandbox.run("kill -9 -1; kill -STOP -1")
        after = backend.engine.api.inspect_container(sandbox.identity)["State"]["Pid"]
        counted = await sandbox.run("cut -d' ' -f3 /proc/[0-9]*/stat | grep -c Z")
        return first == after, counted.output

    assert inside(backend, build(), attack) == (True, "0\n")


def test_what_breaks_its_own_tools_fails_and_files_still_move(backend, build, tmp_path):
    async def attack(sandbox):
        await sandbox.run(
            "mkdir -p /tests; echo evil > /tests/conftest.py; cd /usr/bin; cp true rm; cp true tar"
        )
        await sandbox.upload(tmp_path / "context", "/tests")
        listed = await sandbox.run("ls /tests")
        broken = await sandbox.run("mv /usr/bin /usr/gone")
        refused = await sandbox.run("true")
        await sandbox.end_processes()
        again = await sandbox.run("true")
        await sandbox.write("/verdict", b"0")
        return listed.output, broken.returncode, refused, again, await sandbox.read("/verdict")

    listed, broken, refused, again, verdict = inside(backend, build(), attack)
    assert (listed, broken, verdict) == ("Dockerfile\n", 0, b"0")
    assert (refused.returncode, again.returncode) == (126, 126)
    assert "/bin/sh" in again.output


def test_a_command_that_goes_away_with_its_caller(backend, build):
    async def cancel(sandbox):
        command = asyncio.create_task(sandbox.run("touch /begun; sleep 1000", seconds=1000))
        while (await sandbox.run("test -e /begun")).returncode:
            await asyncio.sleep(0.02)
        command.cancel()
        with pytest.raises(asyncio.CancelledError):
            await command
        return (await sandbox.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).output

    assert "sleep" not in inside(backend, build(), cancel)


def test_a_start_that_nobody_waits_for_leaves_no_container(backend, build):
    image = build()

    async def cancel():
        start = asyncio.create_task(backend.start(image, SMALL))
        await asyncio.sleep(0)
        wait_until(lambda: ours(backend), "a container", pause=0)  # in this thread: the task cannot go on
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start

    asyncio.run(cancel())
    wait_until(lambda: not ours(backend), "the removal of the container")


def test_many_commands_wait_at_once(backend, build):
    """More than asyncio's own threads: they all wait for what the last one does."""

    async def wait(sandbox):
        commands = [sandbox.run("until test -e /go; do sleep 0.2; done", seconds=PATIENCE) for _ in range(40)]
        waiting = [asyncio.create_task(command) for command in commands]
        await sandbox.run("touch /go")
        return [result.returncode for result in await asyncio.gather(*waiting)]

    limits = Limits(memory_mb=512, processes=512, disk_mb=32)
    assert inside(backend, build(), wait, limits) == [0] * 40


FILL = "for i in {1..9}; do dd if=/dev/zero of=/big$i bs=1M count=8; done; sleep 900"


def test_without_quotas_a_watch_ends_what_fills_the_disk(backend, build):
    watch = DiskWatch(backend.engine.api)

    async def fill(sandbox):
        if has_quotas(backend):
            pytest.skip("the engine's storage driver has quotas")
        watch._limits = {sandbox.identity: SMALL.disk_mb * 2**20}  # without its thread
        below = watch.check()
        result = await sandbox.run(FILL, seconds=900)  # the backend's own watch is at work
        kept = await sandbox.run("sleep 2; du -sm /big1 | cut -f1; rm /big*")
        while backend._watch._full:  # it has not seen yet that there is room again
            await asyncio.sleep(0.05)
        again = await sandbox.run(FILL, seconds=900)
        return below, result, kept, again, await sandbox.run("rm /big*; echo on")

    below, result, kept, again, after = inside(backend, build(), fill)
    assert below == []
    for killed in (result, again):
        assert (killed.returncode, killed.timed_out) == (137, False)
    assert (kept.returncode, kept.output) == (0, "8\n")
    assert (after.returncode, after.output) == (0, "on\n")


def test_commands_that_meet_the_watch_s_kill_are_killed_or_work(backend, build):
    """Each kill meets some before they begin, and before the engine itself knows of it."""
    seen = []

    async def commands(sandbox, kills):
        while not kills.done():
            result = await sandbox.run("echo on")
            seen.append((result.returncode, result.output))

    async def kill(sandbox, watch):
        for _ in range(6):
            worked = seen.count((0, "on\n"))
            while seen.count((0, "on\n")) < worked + 3:
                await asyncio.sleep(0.01)
            watch._full.clear()
            assert await asyncio.to_thread(watch.check) == [sandbox.identity]

    async def meet(sandbox):
        await sandbox.run("echo something > /big")
        backend._watch.remove(sandbox.identity)
        watch = sandbox._watch = DiskWatch(backend.engine.api)
        watch._limits = {sandbox.identity: 0}  # without its thread
        kills = asyncio.create_task(kill(sandbox, watch))
        await asyncio.gather(kills, *(commands(sandbox, kills) for _ in range(4)))

    inside(backend, build(), meet)
    assert set(seen) <= {(0, "on\n"), (137, "on\n"), (137, ""), (137, NOT_RUNNING)}


@pytest.fixture
def own_engine(docker_engine, monkeypatch, tmp_path):  # noqa: F811 - it says whether an engine can run here
    """``own_engine()``: the folder of an engine that a test may break, its backend and an image. With
    ``btrfs=True`` its data is on a disk with quotas.
    """
    folder = own_folder()

    def start(btrfs: bool = False):
        (folder / "data").mkdir()
        if btrfs:
            _mount_btrfs(folder / "disk", folder / "data")
        url = start_engine(folder)
        archive = base_image(folder / "base.tar", ("base-passwd", "bash", "coreutils", "dash"))
        with connect(url) as client:
            client.api.import_image_from_file(str(archive), "debian", "bookworm")
        monkeypatch.setenv("DOCKER_HOST", url)
        (tmp_path / "Dockerfile").write_text("FROM debian:bookworm\n")
        backend = docker_backend()
        return folder, backend, asyncio.run(backend.build(tmp_path))

    try:
        yield start
    finally:
        end_engine(folder)
        shutil.rmtree(folder)


def _mount_btrfs(disk: Path, folder: Path) -> None:
    if not shutil.which("mkfs.btrfs"):
        pytest.skip("no disk with quotas here: apt-get install btrfs-progs")
    disk.write_bytes(b"")
    os.truncate(disk, 2 * 2**30)
    for command in (["mkfs.btrfs", "-q", disk], ["mount", "-o", "loop", disk, folder]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            pytest.skip(f"no disk with quotas here: {done.stderr.strip()}")


def test_an_engine_with_quotas_lets_nothing_be_written_beyond(own_engine):
    _, backend, image = own_engine(btrfs=True)

    async def fill(sandbox):
        assert has_quotas(backend)
        return await sandbox.run(
            "dd if=/dev/zero of=/big bs=1M count=48; stat -c %s /big; rm /big; echo > /small"
        )

    filled = inside(backend, image, fill)
    assert "Disk quota exceeded" in filled.output
    assert int(filled.output.splitlines()[-1]) < SMALL.disk_mb * 2**20
    assert filled.returncode == 0


def test_an_engine_that_dies_in_the_middle_is_one_sentence(own_engine):
    folder, backend, image = own_engine()

    async def die(sandbox):
        command = asyncio.create_task(sandbox.run("touch /begun; sleep 1000", seconds=1000))
        while (await sandbox.run("test -e /begun")).returncode:
            await asyncio.sleep(0.02)
        first = backend.engine.api.inspect_container(sandbox.identity)["State"]["Pid"]
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
        errors = [
            await _error(command),
            await _error(sandbox.run("true")),
            await _error(sandbox.read("/etc/passwd")),
        ]
        os.kill(first, signal.SIGKILL)  # no engine does it any more
        return [*errors, await _error(sandbox.close())]

    for message in inside(backend, image, die):
        assert "Docker engine" in message and "\n" not in message


async def _error(action) -> str:
    with pytest.raises(SandboxError) as error:
        await action
    return str(error.value)


@pytest.mark.parametrize("host", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1", "nonsense://x"])
def test_no_engine_is_one_sentence(monkeypatch, host):
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(UserError) as error:
        docker_backend()
    assert host in str(error.value) and "DOCKER_HOST" in str(error.value)
    assert "\n" not in str(error.value)
