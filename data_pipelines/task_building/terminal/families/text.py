"""Texts that families share: words to draw from, filling in templates, the opening lines of tests."""

import random
import re

USERS = "alice bruno carla dmitri elena farid greta hugo ines jonas kira liam mona nadia oscar petra".split()
SERVICES = "billing catalog checkout inventory ledger mailer orders payments profile search shipping".split()
WORDS = (
    "anchor basin candle drift engine falcon garden harbor island jacket kernel lantern marble needle "
    "orchard pebble quartz ribbon saddle timber umber velvet willow yonder zephyr bridge copper dragon "
    "forest glacier hollow meadow north olive prairie river silver tunnel valley window"
).split()
REGIONS = "north south east west central coastal".split()
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()

# How tests begin: what is expected is read before anything that was delivered runs.
EXPECTED = """\
import json
from pathlib import Path

EXPECTED = json.loads(Path("/tests/expected.json").read_text())
"""


def fill(template: str, **values: object) -> str:
    """Replace ``<<name>>`` by values; shell and Python are full of the usual braces and dollars."""
    text = re.sub(r"<<(\w+)>>", lambda match: str(values[match.group(1)]), template)
    return text.strip("\n") + "\n"


def phrase(rng: random.Random, *ways: str) -> str:
    """One of several ways to say the same thing."""
    return rng.choice(ways)


def name_of(rng: random.Random) -> str:
    """Two words, for folders, projects and files."""
    return "-".join(rng.sample(WORDS, 2))
