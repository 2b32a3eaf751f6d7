"""What all tests share."""

import os

import pytest

# Stages that run in tests keep no MLflow run beside them; the tests of that switch it on for themselves.
os.environ.setdefault("GLM5_MLFLOW", "off")

# One server serves all files of such a folder.
SHARING_A_SERVER = ("tests/flows/", "tests/model/inference/server/")


@pytest.hookimpl(optionalhook=True)  # pytest-xdist may not be installed
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """For ``pytest -n 2 --dist loadfile``: files of a folder with a server go to one process, too."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByServer(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            shared = (folder for folder in SHARING_A_SERVER if nodeid.startswith(folder))
            return next(shared, super()._split_scope(nodeid))

    return ByServer(config, log)
