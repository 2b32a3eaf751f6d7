"""Terminal colours in logs."""

import re

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\([A-Z0-9])")


def without_colour(log: str) -> str:
    return _ESCAPES.sub("", log).replace("\r\n", "\n")
