"""The contract of ``environments.sandbox.interface``, held by both backends."""

import asyncio
import os
import sys

import pytest

from environments.sandbox.interface import ImageError, Limits, SandboxError
from tests.environments.sandbox.conftest import SMALL


def outcome(inside, command, image=None, limits=SMALL, **options):
    async def run(sandbox):
        return await sandbox.run(command, **options)

    return inside(run, image, limits)


def test_output_exit_status_and_no_standard_input(inside):
    result = outcome(inside, "echo one; echo two >&2; echo three; cat; exit 3")
    assert (result.returncode, result.output) == (3, "one\ntwo\nthree\n")
    assert not result.timed_out and result.dropped_bytes == 0


def test_a_signal_is_told_by_128_and_its_number(inside):
    assert outcome(inside, "kill -KILL $$").returncode == 137
    assert outcome(inside, "kill -TERM $$").returncode == 143


def test_output_that_is_no_utf_8(inside):
    assert outcome(inside, r"printf 'a\xff\xc3\xa9b'").output == "a\ufffd\u00e9b"


@pytest.mark.parametrize("character", ["\0", "\ud800"])
def test_a_command_that_no_system_can_take_is_not_run(inside, character):
    result = outcome(inside, f"echo {character}")
    assert result.returncode == 126 and "the command cannot be run: " in result.output


def test_bash_starts_in_the_workdir_with_the_image_s_environment(build, inside):
    image = build("ENV GREETING=hello NAME='two words'\nWORKDIR /srv/work\n")
    seen = 'pwd; echo "$GREETING|$NAME|$EXTRA"; [[ -n $BASH_VERSION ]] && id -u'
    assert outcome(inside, seen, image).output == "/srv/work\nhello|two words|\n0\n"
    changed = outcome(inside, seen, image, cwd="/tmp", environment={"EXTRA": "x y", "GREETING": "bye"})
    assert changed.output == "/tmp\nbye|two words|x y\n0\n"


def test_the_host_s_environment_stays_outside(inside, monkeypatch):
    monkeypatch.setenv("A_SECRET_OF_THE_HOST", "do not tell")
    result = outcome(inside, "env; tr '\\0' '\\n' < /proc/1/environ")
    assert "PATH=" in result.output and "do not tell" not in result.output


def test_python_is_the_promised_one(inside, backend):
    """Docker has the image's, 3.11; bubblewrap the one that runs these tests."""
    result = outcome(
        inside, "python3 -c 'import sys, ssl, sqlite3; print(*sys.version_info[:2])' && python -V"
    )
    minor = 11 if backend.name == "docker" else sys.version_info.minor
    assert result.output.startswith(f"3 {minor}\nPython 3.{minor}."), result


def test_a_command_over_its_time_ends_with_all_that_it_started(inside):
    async def act(sandbox):
        late = await sandbox.run(
            "echo begun; (setsid nohup sleep 4711 & ) ; (sleep 4712 & sleep 4713) & sleep 4714", seconds=1.5
        )
        left = await sandbox.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 471[1-4]' || true")
        return late, left

    late, left = inside(act)
    assert late.timed_out and late.returncode == 137 and late.output == "begun\n"
    assert left.output.strip() == "0"


def test_what_runs_in_the_background_goes_on_until_processes_are_ended(inside):
    async def act(sandbox):
        await sandbox.run(
            "(while :; do date +%N > /tmp/beat; sleep 0.05; done) & "
            "until [ -s /tmp/beat ]; do sleep 0.05; done; echo started > /tmp/kept"
        )
        first = await sandbox.read("/tmp/beat")
        while await sandbox.read("/tmp/beat") in (first, b""):
            await asyncio.sleep(0.02)
        await sandbox.end_processes()
        last = await sandbox.read("/tmp/beat")
        await asyncio.sleep(0.3)
        again = await sandbox.run("cat /tmp/kept; ls /proc | grep -c '^[0-9]'")
        return last, await sandbox.read("/tmp/beat"), again

    last, later, again = inside(act)
    assert last == later
    kept, processes = again.output.split()
    assert kept == "started" and int(processes) < 8


def test_a_background_child_that_holds_the_output_does_not_hold_the_command(inside):
    async def act(sandbox):
        return await asyncio.wait_for(sandbox.run("sleep 4720 & echo done", seconds=600), 300)

    assert inside(act).output == "done\n"


def test_ending_processes_ends_a_command_that_runs(inside):
    async def act(sandbox):
        task = asyncio.create_task(sandbox.run("echo > /tmp/begun; sleep 4721", seconds=600))
        while True:
            try:
                await sandbox.read("/tmp/begun")
                break
            except FileNotFoundError:
                await asyncio.sleep(0.02)
        await sandbox.end_processes()
        return await asyncio.wait_for(task, 300), await sandbox.run("echo alive")

    ended, next_one = inside(act)
    assert ended.returncode == 137 and not ended.timed_out
    assert next_one.output == "alive\n"


def test_long_output_keeps_its_head_and_tail(inside):
    limits = Limits(memory_mb=256, processes=64, disk_mb=32, output_bytes=1000)
    result = outcome(inside, "echo first; seq 100000; echo last", limits=limits)
    assert result.output.startswith("first\n1\n2\n") and result.output.endswith("\n99999\n100000\nlast\n")
    whole = len("first\nlast\n") + sum(len(str(number)) + 1 for number in range(1, 100001))
    assert result.dropped_bytes == whole - 1000 and len(result.output) < 1100
    assert outcome(inside, "head -c 1000 /dev/zero | tr '\\0' x", limits=limits).dropped_bytes == 0


def test_files_go_in_and_come_out_unchanged(inside):
    content = bytes(range(256)) * 1000

    async def act(sandbox):
        await sandbox.write("/deep/er/file.bin", content)
        await sandbox.write("/deep/tool", b"#!/bin/sh\necho tool\n", mode=0o755)
        await sandbox.write("/deep/tool2", b"long", mode=0o600)
        await sandbox.write("/deep/tool2", b"new", mode=0o640)
        seen = await sandbox.run("/deep/tool; stat -c '%a %u %n' /deep/tool2; cat /deep/tool2")
        await sandbox.run("echo -n made > /tmp/made")
        return (
            await sandbox.read("/deep/er/file.bin"), await sandbox.read("/deep/er/file.bin", limit=10),
            await sandbox.read("/tmp/made"), seen.output,
        )  # fmt: skip

    whole, part, made, seen = inside(act)
    assert whole == content and part == content[:10] and made == b"made"
    assert seen == "tool\n640 0 /deep/tool2\nnew"


@pytest.mark.parametrize("path", ["/nothing/there", "/tmp", "/tmp/pipe", "/tmp/dangling", "/tmp/loop"])
def test_what_is_no_regular_file_cannot_be_read(inside, path):
    async def act(sandbox):
        await sandbox.run("cd /tmp; mkfifo pipe; ln -s nowhere dangling; ln -s loop loop")
        with pytest.raises(FileNotFoundError):
            await asyncio.wait_for(sandbox.read(path), 300)

    inside(act)


def test_an_uploaded_folder_replaces_what_was_there(inside, tmp_path):
    source = tmp_path / "tests"
    (source / "below").mkdir(parents=True)
    (source / "test.sh").write_text("echo from the test\n")
    (source / "test.sh").chmod(0o755)
    (source / "below/data").write_bytes(b"\x00\x01")
    (source / "link").symlink_to("below/data")

    async def act(sandbox):
        await sandbox.run(
            "mkdir -p /tests/below; echo fake > /tests/conftest.py; echo fake > /tests/below/data"
        )
        await sandbox.upload(source, "/tests")
        await sandbox.run("ln -s /tmp /other; echo mine > /tmp/mine")
        await sandbox.upload(source, "/other")
        seen = await sandbox.run(
            "cd /tests; find . | sort; ./test.sh; readlink link; cat /tmp/mine; ls /other"
        )
        return seen.output, await sandbox.read("/tests/link")

    seen, linked = inside(act)
    listed = ".\n./below\n./below/data\n./link\n./test.sh\n"
    assert (
        seen == listed + "from the test\nbelow/data\nmine\nbelow\nlink\ntest.sh\n" and linked == b"\x00\x01"
    )


def test_many_at_once_do_not_see_one_another(backend, build):
    image = build()

    async def one(number):
        async with await backend.start(image, SMALL) as sandbox:
            await sandbox.write("/app/mine", str(number).encode())
            results = await asyncio.gather(
                sandbox.run("cat mine; sleep 0.2; ls /app"), sandbox.run("echo $((6*7)); ls /tmp")
            )
            return number, results[0].output, results[1].output

    async def all_of_them():
        return await asyncio.gather(*(one(number) for number in range(8)))

    assert asyncio.run(all_of_them()) == [(number, f"{number}mine\n", "42\n") for number in range(8)]


def test_an_image_holds_its_steps_and_no_sandbox_changes_it(build, inside):
    image = build(
        "ARG WORD=first\nWORKDIR /app\nCOPY data/ data/\nCOPY one.txt renamed.txt\n"
        'RUN echo $WORD > made && rm data/b\nRUN ["touch", "with space"]\n',
        {"data/a": "A", "data/b": "B", "one.txt": "1"},
    )
    listing = "find . -type f | sort; cat made renamed.txt data/a"
    expected = "./data/a\n./made\n./renamed.txt\n./with space\nfirst\n1A"
    assert outcome(inside, listing, image).output == expected
    assert outcome(inside, "rm -r data; echo changed > made; echo x > /etc/hosts", image).returncode == 0
    assert outcome(inside, listing, image).output == expected


def test_the_same_content_is_built_once(build):
    step = "RUN echo {} $(cat /proc/sys/kernel/random/uuid) > /made\n"
    assert build(step.format(1)).name == build(step.format(1)).name
    assert build(step.format(1)).name != build(step.format(2)).name


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("RUN echo some reason >&2; exit 7\n", "some reason"),
        ("COPY missing.txt .\n", "missing.txt"),
        ("ADD x .\n", "ADD"),
    ],
)
def test_an_image_that_cannot_be_built_says_why(build, lines, words):
    with pytest.raises(ImageError, match=words) as caught:
        build("WORKDIR /app\n" + lines)
    assert "\n" not in str(caught.value)


def test_a_folder_whose_dockerfile_cannot_be_taken(backend, tmp_path):
    with pytest.raises(ImageError, match="Dockerfile"):
        asyncio.run(backend.build(tmp_path))
    (tmp_path / "Dockerfile").write_bytes(b"FROM \xff")
    with pytest.raises(ImageError, match="UTF-8"):
        asyncio.run(backend.build(tmp_path))
    (tmp_path / "Dockerfile").write_text("FROM python:3.11-slim-bookworm\n")
    (tmp_path / ".dockerignore").write_text("secret")
    with pytest.raises(ImageError, match="dockerignore"):
        asyncio.run(backend.build(tmp_path))


def test_copy_takes_nothing_from_outside_the_folder(build, tmp_path):
    (tmp_path / "outside.txt").write_text("outside")
    (tmp_path / "context").mkdir()
    (tmp_path / "context/link.txt").symlink_to(tmp_path / "outside.txt")
    with pytest.raises(ImageError):
        build("COPY ../outside.txt /\n")
    with pytest.raises(ImageError):
        build("COPY link.txt /copied/\nRUN cat /copied/link.txt\n")


def test_a_closed_sandbox_can_be_closed_again_and_does_nothing_else(backend, build):
    image = build()

    async def act():
        sandbox = await backend.start(image, SMALL)
        await asyncio.gather(sandbox.close(), sandbox.close())
        await sandbox.close()
        for attempt in (sandbox.run("true"), sandbox.write("/x", b""), sandbox.read("/etc/hosts")):
            with pytest.raises(SandboxError):
                await attempt

    asyncio.run(act())


def test_descriptors_of_this_process_are_given_back(backend, build):
    image = build()

    async def act():
        async with await backend.start(image, SMALL) as sandbox:
            for _ in range(3):
                await sandbox.run("sleep 4730 & echo x")
            await sandbox.run("sleep 4731", seconds=0.3)

    asyncio.run(act())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        asyncio.run(act())
    assert len(os.listdir("/proc/self/fd")) <= before + 4  # a client may keep a few connections
