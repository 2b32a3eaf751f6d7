"""The browser that slides are judged in, or an honest skip."""

import pytest

from environments.slides import browser
from environments.slides.browser import find_browser
from pipeline.errors import UserError
from tests.waiting import PATIENCE


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """However busy the machine is."""
    monkeypatch.setattr(browser, "SECONDS", PATIENCE)


@pytest.fixture(scope="session")
def program():
    try:
        return find_browser()
    except UserError as error:
        pytest.skip(str(error))
