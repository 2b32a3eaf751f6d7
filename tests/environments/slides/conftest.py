"""Slides to judge, and the patience to wait for a browser."""

import random

import pytest

from environments.slides import browser
from environments.slides.environment import Slides
from tests.waiting import PATIENCE

SLIDES = Slides()
FAMILIES = SLIDES.families + SLIDES.evaluation_only


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """However busy the machine is."""
    monkeypatch.setattr(browser, "SECONDS", PATIENCE)


def tasks(family, count, salt=""):
    """Fixed ones, others for another ``salt``."""
    first = random.Random(family + salt).randrange(10**6)
    return [SLIDES.make_task(family, first + n, family in SLIDES.evaluation_only) for n in range(count)]


def with_rule(page, rule):
    return page.replace("</style>", f"{rule}</style>")


def with_end(page, more):
    return page.replace("</body>", f"{more}</body>")
