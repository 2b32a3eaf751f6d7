"""Run a project's tests in a sandbox, by the very file that grades the task, and keep what repeats."""

import asyncio
import hashlib
import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from data_pipelines.task_building.candidate import Rejected
from data_pipelines.task_building.swe.project import Project
from environments.sandbox.interface import Backend, Image, Limits
from environments.swe import grading
from environments.swe.history import copies_command, shown_by

REPEATS = 3
SECONDS = 60  # of one run of all tests
LIMITS = Limits(memory_mb=1024, cpus=1.0, disk_mb=512)
GRADER = Path(grading.__file__)
BASE = "python:3.11-slim-bookworm"
# The sandbox's base may lack git, under Docker it does.
GIT = (
    "RUN command -v git >/dev/null || (apt-get update && apt-get install -y --no-install-recommends git "
    "&& rm -rf /var/lib/apt/lists/*)"
)


@dataclass(frozen=True)
class Outcome:
    """Statuses of one state of a project in each of the runs."""

    runs: tuple[dict[str, str], ...]

    @property
    def stable(self) -> dict[str, str]:
        """The tests whose status was the same in all runs."""
        first, *others = self.runs
        return {
            test: status for test, status in first.items() if all(run.get(test) == status for run in others)
        }

    @property
    def flaky(self) -> set[str]:
        return set().union(*self.runs) - self.stable.keys()


def image_lines(project: Project) -> str:
    """The layers that all tasks of a project share."""
    return f"FROM {BASE}\n{GIT}\nRUN pip install --no-cache-dir --no-deps {' '.join(project.pins)}\n"


def tests_json(project: Project, repair: list[str], keep: list[str]) -> dict:
    return {
        "project": project.workdir, "paths": list(project.paths), "tests": list(project.tests),
        "owned": list(project.owned), "config": project.config, "options": list(project.options),
        "seconds": SECONDS, "fail_to_pass": repair, "pass_to_pass": keep,
    }  # fmt: skip


def owned_archive(project: Project, tree: Path) -> bytes:
    """The test files and configuration of a release, byte for byte the same for the same files."""
    files = [file for name in project.owned for file in _files(tree / name)]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=9) as archive:
        for file in sorted(files):
            entry = tarfile.TarInfo(file.relative_to(tree).as_posix())
            content = file.read_bytes()
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    data = bytearray(buffer.getvalue())
    data[4:8] = bytes(4)  # gzip's time of writing
    return bytes(data)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return [file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    return [path] if path.is_file() else []


class Runner:
    """Runs states of one project, as many at once as there are cores; ``cache`` keeps results by digest."""

    def __init__(self, backend: Backend, project: Project, cache: Path) -> None:
        self._backend, self._project, self._cache = backend, project, cache
        self._slots = asyncio.Semaphore(os.cpu_count() or 1)
        self._lock = asyncio.Lock()
        self._image: Image | None = None
        self._copies: dict[str, list[str]] = {}

    async def run(
        self,
        tree: Path,
        tests: bytes,
        changes: Mapping[str, str | None] | None = None,
        repeats: int = REPEATS,
    ) -> Outcome:
        """Statuses of all tests of the archive ``tests``, on ``tree`` with files replaced (None: removed)."""
        key = self._key(tree, tests, changes or {})
        kept = self._cache / f"{key}.json"
        runs = json.loads(kept.read_text()) if kept.is_file() else []
        if len(runs) < repeats:
            async with self._slots:
                runs += await self._run(tree, tests, changes or {}, repeats - len(runs))
            if all(runs):  # one without results may have been late alone: it is tried again another time
                _keep(kept, runs)
        return Outcome(tuple(runs[:repeats]))

    async def _run(self, tree, tests, changes, times) -> list[dict[str, str]]:
        image = await self.image()
        workdir = self._project.workdir
        async with await self._backend.start(image, LIMITS) as box:
            await box.upload(tree, workdir)
            for name, text in changes.items():
                if text is None:
                    await box.run(f"rm -f -- {workdir}/{name}")
                else:
                    await box.write(f"{workdir}/{name}", text.encode())
            return [await self._once(box, tests) for _ in range(times)]

    async def _once(self, box, tests: bytes) -> dict[str, str]:
        for name, content in (
            ("grade.py", GRADER.read_bytes()),
            ("tests.json", json.dumps(tests_json(self._project, [], [])).encode()),
            ("files.tar.gz", tests),
        ):
            await box.write(f"/tests/{name}", content)
        result = await box.run("python3 -I -S /tests/grade.py", seconds=SECONDS + 60, cwd="/")
        await box.end_processes()
        try:
            return json.loads(await box.read("/logs/verifier/grade.json", 16 * 2**20))["results"]
        except FileNotFoundError:
            raise Rejected(f"the grader left nothing: {result.output[-200:]}") from None

    async def image(self) -> Image:
        """The image with what the tests need and nothing of the project. Raises ``Rejected``."""
        async with self._lock:
            if self._image is None:
                with tempfile.TemporaryDirectory() as folder:
                    image = await self._build(Path(folder))
                self._copies = await self._find_copies(image)
                self._image = image
            return self._image

    async def _build(self, folder: Path) -> Image:
        (folder / "Dockerfile").write_text(image_lines(self._project))
        return await self._backend.build(folder)

    def check_hidden(self, fix: str) -> None:
        """Raises ``Rejected`` where a copy of the project, installed beside the tests, has the fix."""
        if place := shown_by(self._copies, self._project.package, fix):
            raise Rejected(f"another copy of the project has the fix: {place}")

    async def _find_copies(self, image: Image) -> dict[str, list[str]]:
        """A walk through the whole file system: kept, too."""
        kept = self._cache / f"copies-{self._project.module}-{_safe(image.name)}.json"
        if kept.is_file():
            return json.loads(kept.read_text())
        async with await self._backend.start(image, LIMITS) as box:
            found = await box.run(copies_command(self._project.module, "/tmp/copies.json"), seconds=SECONDS)
            if found.returncode:
                raise Rejected(f"copies of the project cannot be looked for: {found.output[-200:]}")
            copies = json.loads(await box.read("/tmp/copies.json", 64 * 2**20))
        _keep(kept, copies)
        return copies

    def _key(self, tree: Path, tests: bytes, changes: Mapping[str, str | None]) -> str:
        total = hashlib.sha256(GRADER.read_bytes() + tests)
        total.update(json.dumps([image_lines(self._project), tests_json(self._project, [], [])]).encode())
        total.update(json.dumps([tree.name, sorted(changes.items())]).encode())
        return total.hexdigest()


def _keep(file: Path, content: list | dict) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(json.dumps(content))
    partial.replace(file)


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]", "-", name)[-80:]
