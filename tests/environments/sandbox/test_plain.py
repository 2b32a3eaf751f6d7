"""The backend of plain processes: what it does, and that it is never chosen unasked."""

import asyncio
import os
from pathlib import Path

import pytest

from environments.sandbox import choose
from environments.sandbox.choose import open_backend
from environments.sandbox.interface import ImageError, Limits
from environments.sandbox.plain import PlainProcess
from pipeline.errors import UserError


def play(folder: Path, dockerfile: str, action):
    async def act():
        (folder / "Dockerfile").write_text(dockerfile)
        backend = PlainProcess()
        async with await backend.start(await backend.build(folder), Limits(output_bytes=1000)) as sandbox:
            return await action(sandbox)

    return asyncio.run(act())


def test_commands_files_and_time(tmp_path):
    (tmp_path / "data.txt").write_text("data")

    async def action(sandbox):
        await sandbox.write("/app/below/given", b"given", 0o755)
        seen = await sandbox.run("pwd | grep -c '^$SANDBOX' ; cat data.txt below/given; echo $WORD; exit 3")
        late = await sandbox.run("echo begun; sleep 1000", seconds=1)
        long = await sandbox.run("seq 10000")
        await sandbox.run("echo made > made; sleep 1000 & echo $! > pid")
        pid = int(await sandbox.read("/app/pid"))
        await sandbox.end_processes()
        while os.path.exists(f"/proc/{pid}") and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
            await asyncio.sleep(0.01)
        with pytest.raises(FileNotFoundError):
            await sandbox.read("/etc/hostname")
        root = Path((await sandbox.run("echo -n $SANDBOX")).output)
        assert root.is_dir()
        return seen, late, long, await sandbox.read("/app/made"), root

    seen, late, long, made, root = play(
        tmp_path, "FROM debian:bookworm\nWORKDIR /app\nENV WORD=said\nCOPY data.txt .\n", action
    )
    assert (seen.returncode, seen.output) == (3, "0\ndatagivensaid\n")
    assert late.timed_out and late.output == "begun\n" and late.returncode == 137
    assert long.dropped_bytes > 0 and made == b"made\n" and not root.exists()


def test_steps_that_would_change_the_host_are_refused(tmp_path):
    with pytest.raises(ImageError, match="line 2: RUN needs a real sandbox"):
        play(tmp_path, "FROM debian:bookworm\nRUN touch /planted\n", None)


def test_it_is_not_chosen_where_nothing_else_works(tmp_path, monkeypatch):
    monkeypatch.setattr(choose, "why_not", lambda cache: "it is not installed")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(UserError, match="no sandbox can be started"):
        open_backend(None, tmp_path)
