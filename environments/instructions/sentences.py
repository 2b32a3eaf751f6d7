"""Short sentences of words that are one token each in a vocabulary of 2,048: what the oracle writes."""

import random

TOPICS = ("file", "key", "name", "list", "path", "test", "code", "line", "text", "data")
QUALITIES = ("new", "open", "local", "valid")
# Of 3 to 7 words; {t} is what it is about, {o} another thing, {q} and {p} qualities.
FORMS = (
    "read the {t}", "use this {t}", "a {q} {t}", "the {t} is {q}", "use the {q} {t}", "the {t} is not {q}",
    "the {t} has a {o}", "use this {t} for the {o}", "read the {t} and the {o}", "the {q} {t} has a {o}",
    "the {t} and the {o} are {q}", "the {q} {t} has a {p} {o}", "use this {q} and {p} {t}",
)  # fmt: skip


def sentence(rng: random.Random, topic: str) -> str:
    """A random sentence about ``topic``."""
    other = rng.choice([word for word in TOPICS if word != topic])
    quality, second = rng.sample(QUALITIES, 2)
    return rng.choice(FORMS).format(t=topic, o=other, q=quality, p=second)
