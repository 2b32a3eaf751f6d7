"""Faults of a text that is read without its task: one piece over and over, scripts that nobody used before.

They are the pathologies of GLM-4.5's general RL beside faults of format. Rewards weigh them
(``tasks.rl.rewards.rules``), evaluation counts them (``evals.conduct``).
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache

# A piece of up to 64 characters, four times or more in a row.
LOOP = re.compile(r"(.{1,64}?)\1{3,}", re.DOTALL)
SHORTEST_LOOP = 12  # characters: "aaaa" may be meant
READ = 8192  # characters of an answer that are searched for loops
ONE_SCRIPT = {"HIRAGANA": "CJK", "KATAKANA": "CJK"}  # written together


def language(asked: str, text: str) -> float:
    """The share of letters in a script that the prompt is written in; broken bytes are in none."""
    known = set(_scripts(asked)) or {"LATIN"}
    scripts = list(_scripts(text))
    return sum(script in known for script in scripts) / len(scripts) if scripts else 1.0


def repetition(text: str) -> float:
    """1 less the share of the text that is one piece over and over."""
    text = text[:READ]
    loops = [len(found.group()) for found in LOOP.finditer(text) if len(found.group()) >= SHORTEST_LOOP]
    return 1 - sum(loops) / max(len(text), 1)


def _scripts(text: str) -> Iterator[str]:
    for character in text:
        if character.isalpha() or character == "\ufffd":
            yield _script(character)


@cache
def _script(character: str) -> str:
    """LATIN, CYRILLIC, CJK, ...: the first word of a letter's name."""
    word = unicodedata.name(character, "?").split()[0]
    return ONE_SCRIPT.get(word, word)
