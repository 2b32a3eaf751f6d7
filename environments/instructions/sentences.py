"""Short sentences about things that have letters for names: words of one token each in a vocabulary of 2,048,
and names that a small model can copy.
"""

import random

from environments.keys import LETTERS

TOPICS = tuple(letter for letter in LETTERS if letter != "a")  # which is a word, too
QUALITIES = ("new", "open", "local", "valid")
# Of 3 to 7 words; {t} is what it is about, {o} another thing, {q} a quality.
FORMS = (
    "read the {t}", "use this {t}", "a {q} {t}", "the {t} is {q}", "use the {q} {t}", "the {t} is not {q}",
    "the {t} has a {o}", "use this {t} for the {o}", "read the {t} and the {o}", "the {q} {t} has a {o}",
    "the {t} and the {o} are {q}",
)  # fmt: skip


def sentence(rng: random.Random, topic: str, other: str | None = None) -> str:
    """A random sentence about ``topic``, and about ``other`` where it has a place for it."""
    other = other or rng.choice([word for word in TOPICS if word != topic])
    return rng.choice(FORMS).format(t=topic, o=other, q=rng.choice(QUALITIES))
