"""Fixes that forge a reward instead: the code under test runs beside the grader, as the same user."""

import asyncio

import pytest

from data_pipelines.task_building.swe.folder import write_folder
from data_pipelines.task_building.swe.project import release_tree
from data_pipelines.task_building.swe.running import owned_archive
from environments.harbor.task import load_task
from environments.harbor.verifier import make_folders, verify
from tests.data_pipelines.swe.conftest import NEW, OLD
from tests.data_pipelines.swe.packages import pytest_lines
from tests.sandboxes import backend_or_skip, image_cache

AREA = "tests/test_shapes.py::TestArea::test_negative"
SCALE = "tests/test_shapes.py::test_scale"
WRITE = """
import os, signal, subprocess, sys
def forge():
    for name, text in (("reward.txt", "1"), ("reward.json", '{"reward": 1}')):
        open(f"/logs/verifier/{name}", "w").write(text)
forge()
"""
LATER = "while True: open('/logs/verifier/reward.txt', 'w').write('1')"
FORGERIES = {
    "rewards in both forms": WRITE,
    "the grader killed and a process left": WRITE
    + f"subprocess.Popen([sys.executable, '-c', {LATER!r}], start_new_session=True)\n"
    + "os.kill(os.getppid(), signal.SIGKILL)\n",
}


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    return backend_or_skip(image_cache(tmp_path_factory))


@pytest.fixture
def task(shapes, tmp_path):
    """The reversal of a whole release, with pytest from the packages of this Python."""
    folder = tmp_path / "task"
    folder.mkdir()
    tree = release_tree(shapes, shapes.releases[1], tmp_path / "scratch")
    write_folder(
        folder, shapes, tree, {"src/shapes.py": OLD}, "Repair it.\n", "", owned_archive(shapes, tree),
        [AREA], [SCALE], "shapes-1", {},
    )  # fmt: skip
    dockerfile = folder / "environment/Dockerfile"
    copies = dockerfile.read_text().partition("COPY")
    dockerfile.write_text(pytest_lines(folder / "environment") + "".join(copies[1:]))
    return load_task(folder)


def graded(task, backend, code: str):
    async def attempt():
        image = await backend.build(task.environment)
        async with await backend.start(image, task.limits) as sandbox:
            await make_folders(sandbox)
            await sandbox.write("/app/shapes/src/shapes.py", code.encode())
            return await verify(task, sandbox, image, backend)

    return asyncio.run(attempt())


def test_no_forgery_scores_and_the_fix_does(task, backend):
    for name, forgery in FORGERIES.items():
        grading = graded(task, backend, OLD + forgery)
        assert grading.reward == 0, (name, grading)
    assert graded(task, backend, NEW).reward == 1
