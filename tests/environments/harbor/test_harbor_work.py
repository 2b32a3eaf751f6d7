"""Carrying work from one sandbox into another: what arrives, what does not, what is said when nothing can."""

import asyncio

import pytest

from environments.harbor.config import Artifact
from environments.harbor.task import load_task
from environments.harbor.work import WorkLost, put, taken
from tests.environments.sandbox.conftest import has_quotas

LOOK = "cd /app && find . -printf '%p %m %y %l\n' | sort; cat tool data/* 2>&1; ls -d /app/gone"


def carried(backend, folder, command: str, *artifacts: Artifact, look: str = LOOK) -> str:
    """What ``look`` prints in a clean sandbox that received the artifacts of one where ``command`` ran."""

    async def carry():
        task = load_task(folder)
        image = await backend.build(task.environment)
        async with await backend.start(image, task.limits) as first:
            await first.run(command)
            async with (
                taken(first, list(artifacts)) as work,
                await backend.start(image, task.limits) as second,
            ):
                await put(second, work)
                return (await second.run(look)).output

    return asyncio.run(carry())


def test_files_modes_and_links_inside_arrive_and_nothing_else(backend, write_task):
    made = """
        rm numbers.txt; echo '#!/bin/sh' > tool; chmod 750 tool; mkdir data; echo one > data/one
        ln data/one data/two; ln -s data/one here; ln -s /app/data/one full
        ln -s ../etc/passwd out; ln -s /etc/passwd out2; mkfifo pipe
        mkdir -m 711 empty; mkdir skipped; echo > skipped/x"""
    seen = carried(backend, write_task(), made, Artifact(source="/app", exclude=["skipped"]))
    assert seen.splitlines() == [
        ". 755 d ", "./data 755 d ", "./data/one 644 f ", "./data/two 644 f ", "./empty 711 d ",
        "./full 777 l data/one", "./here 777 l data/one", "./tool 750 f ",
        "#!/bin/sh", "one", "one", "ls: cannot access '/app/gone': No such file or directory",
    ]  # fmt: skip


def test_single_files_and_absent_ones(backend, write_task):
    sources = [Artifact(source=path) for path in ("/app/out.txt", "/app/numbers.txt", "/app/link.txt")]
    made = "echo done > out.txt; chmod 640 out.txt; rm numbers.txt; ln -s /etc/passwd link.txt"
    look = "cd /app && ls; stat -c %a out.txt; cat out.txt"
    assert carried(backend, write_task(), made, *sources, look=look) == "out.txt\n640\ndone\n"


def test_work_that_cannot_be_packed_is_lost_and_that_is_said(backend, write_task):
    command = "shim() { printf '#!/bin/sh\nexit 0\n' > $1; chmod 755 $1; }; shim /usr/local/bin/tar"
    with pytest.raises(WorkLost, match="^/app could not be packed"):
        carried(backend, write_task(), command, Artifact(source="/app"))


def test_work_beyond_the_disk_is_lost_or_whole(backend, write_task):
    """With quotas it is lost. A watch may look only after it was packed: then all of it is there."""
    size = 70_000_000  # of 64 MiB

    async def take():
        task = load_task(write_task())
        image = await backend.build(task.environment)
        async with await backend.start(image, task.limits) as sandbox:
            await sandbox.run(f"rm -rf /app; mkdir /app; head -c {size} /dev/zero > /app/full", cwd="/")
            try:
                async with taken(sandbox, [Artifact(source="/app")]) as [work]:
                    arrived = (work.content / "full").read_bytes()
            except WorkLost as lost:
                assert str(lost).startswith("/app could not be packed")
            else:
                assert not has_quotas(backend)
                assert arrived == await sandbox.read("/app/full", size + 1)

    asyncio.run(take())


def test_artifacts_larger_than_allowed_together_are_lost(backend, write_task):
    async def take(most: int) -> list[int]:
        task = load_task(write_task())
        image = await backend.build(task.environment)
        async with await backend.start(image, task.limits) as sandbox:
            await sandbox.run("head -c 100000 /dev/zero > one; head -c 200000 /dev/zero > two")
            sources = [Artifact(source=f"/app/{name}") for name in ("one", "gone", "two")]
            async with taken(sandbox, sources, most) as work:
                return [item.content.stat().st_size if item.content else 0 for item in work]

    assert asyncio.run(take(400_000)) == [100_000, 0, 200_000]
    with pytest.raises(WorkLost, match="^/app/two could not be packed: it is too large"):
        asyncio.run(take(250_000))
