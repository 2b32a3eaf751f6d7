"""Both real backends behind one fixture, and what a test needs to play in a sandbox."""

import asyncio

import pytest

from environments.sandbox.choose import open_backend
from environments.sandbox.interface import Limits
from tests.environments.sandbox.docker_engine import docker_engine  # noqa: F401 - a fixture
from tests.sandboxes import backend_or_skip, image_cache

FROM = "FROM python:3.11-slim-bookworm\n"
SMALL = Limits(memory_mb=256, cpus=1.0, processes=64, disk_mb=32)


def has_quotas(backend) -> bool:
    """Whether nothing can be written beyond a sandbox's limit: known once one was started. Without quotas a
    watch ends what wrote too much, somewhat later.
    """
    return backend.name != "docker" or backend._quota


@pytest.fixture(scope="session")
def bubblewrap(tmp_path_factory):
    return backend_or_skip(image_cache(tmp_path_factory))


@pytest.fixture(scope="session")
def docker(request):
    url = request.getfixturevalue("docker_engine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", url)
        return open_backend("docker")


@pytest.fixture(params=["bubblewrap", "docker"])
def backend(request):
    """The backend under test; its methods are coroutines, see ``inside``."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def build(backend, tmp_path):
    """``build("RUN ...", {"name": "content"})``: the image of a Dockerfile and of files beside it."""

    def build(lines: str = "WORKDIR /app\n", files: dict[str, str] | None = None):
        folder = tmp_path / "context"
        folder.mkdir(exist_ok=True)
        (folder / "Dockerfile").write_text(FROM + lines)
        for name, content in (files or {}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        return asyncio.run(backend.build(folder))

    return build


@pytest.fixture
def inside(backend, build):
    """``inside(action, image, limits)``: what ``await action(sandbox)`` returns for a fresh sandbox."""

    def inside(action, image=None, limits: Limits = SMALL):
        async def play():
            async with await backend.start(image, limits) as sandbox:
                return await action(sandbox)

        image = image or build()
        return asyncio.run(play())

    return inside
