"""The browser that slides are judged in, or an honest skip."""

import pytest

from environments.slides.browser import find_browser
from pipeline.errors import UserError


@pytest.fixture(scope="session")
def program():
    try:
        return find_browser()
    except UserError as error:
        pytest.skip(str(error))
