"""What all tests share."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest
import torch

from environments.slides.browser import find_browser
from pipeline.errors import UserError
from tests.waiting import PATIENCE

# Stages that run in tests keep no MLflow run beside them; the tests of that switch it on for themselves.
os.environ.setdefault("GLM5_MLFLOW", "off")

# What a shell starts in the background ignores SIGINT, and so would its children; a handler is not inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Kernels run under Triton's interpreter where there is no card. Triton decides when it is imported, which
# anything a test imports may do: so this comes first.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Hypothesis draws the same examples in every run, and takes as long as the machine does.
with contextlib.suppress(ImportError):
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``gpu`` are skipped, and say so, where there is no card. Folders with a server come first,
    then files with a slow test: no process shall be left with one of them when the others are done.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (_shared_folder(item.nodeid) is None, item.path not in slow))
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))


# One server serves all files of such a folder.
SHARING_A_SERVER = ("tests/flows/", "tests/model/inference/server/")


def _shared_folder(nodeid: str) -> str | None:
    return next((folder for folder in SHARING_A_SERVER if nodeid.startswith(folder)), None)


@pytest.hookimpl(optionalhook=True)  # pytest-xdist may not be installed
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """For ``pytest -n 2 --dist loadfile``: files of a folder with a server go to one process, too."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByServer(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _shared_folder(nodeid) or super()._split_scope(nodeid)

    config.option.loadscopereorder = False  # by the number of tests, which says little of their time
    return ByServer(config, log)


@pytest.fixture(scope="session")
def chromium_program():
    """The path of a real Chromium; one who has none is told so."""
    try:
        return find_browser()
    except UserError:  # its sentence speaks of slides, and pages are tested with it as well
        pytest.skip("no Chromium here: apt-get install chromium")


@pytest.fixture(scope="module")
def chromium(chromium_program):
    """A real headless Chromium, driven by playwright."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=chromium_program, args=["--no-sandbox"], timeout=1000 * PATIENCE
        )
        yield browser
        browser.close()


@pytest.fixture
def mount_disk(tmp_path):
    """``mount_disk("64k")``: the folder of a disk of that size."""
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("needs root to mount a small disk")
    with contextlib.ExitStack() as mounted:

        def mount(size: str):
            folder = tmp_path / "disk"
            folder.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
            if subprocess.run(command, timeout=PATIENCE).returncode:
                pytest.skip("mounting is not allowed here")
            mounted.callback(subprocess.run, ["umount", "-l", folder], check=True, timeout=PATIENCE)
            return folder

        yield mount
