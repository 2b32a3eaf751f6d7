"""The sandboxes in which the tool ``python`` runs programs, one an episode."""

import tempfile
from pathlib import Path

from environments.sandbox.interface import Backend, ImageError, Limits, Sandbox, SandboxError
from environments.search.episode import StartSandbox

DOCKERFILE = "FROM python:3.11-slim-bookworm\nWORKDIR /work\n"
LIMITS = Limits(memory_mb=512, processes=32, disk_mb=64, output_bytes=16_000)


def python_sandboxes(backend: Backend, limits: Limits = LIMITS) -> StartSandbox:
    """What starts a sandbox with Python and nothing else; the backend keeps the image."""

    async def start() -> Sandbox:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "Dockerfile").write_text(DOCKERFILE)
            try:
                image = await backend.build(Path(folder))
            except ImageError as error:
                raise SandboxError(f"no image for Python: {error}") from None
        return await backend.start(image, limits)

    return start
