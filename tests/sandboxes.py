"""Real sandboxes for tests; one who cannot have them is told why."""

from pathlib import Path

import pytest

from environments.sandbox.choose import open_backend
from environments.sandbox.interface import Backend
from pipeline.errors import UserError


def image_cache(factory: pytest.TempPathFactory) -> Path:
    """Where all tests of this process keep images: their lowest layer takes seconds to make."""
    return factory.getbasetemp() / "images"


def backend_or_skip(cache: Path, name: str | None = "bubblewrap") -> Backend:
    """The backend of that name (None: the best that works here), or a skip with the reason that it gives."""
    try:
        return open_backend(name, cache)
    except UserError as error:
        pytest.skip(str(error))
