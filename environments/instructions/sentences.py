"""Short sentences of words that are one token each in a small vocabulary: what the oracle writes."""

import random

TOPICS = (
    "name", "value", "key", "code", "file", "list", "type", "text", "line", "path", "item", "data", "date",
    "test", "user", "class", "error", "string", "method", "state", "server", "result", "field", "token",
)  # fmt: skip
QUALITIES = ("new", "open", "local", "low", "valid", "direct")
# Of 3 to 7 words; {t} is what it is about, {o} another thing, {q} and {p} qualities.
FORMS = (
    "read the {t}", "check the {t}", "a {q} {t}", "the {t} is {q}", "use the {q} {t}", "read this {q} {t}",
    "the {t} is not {q}", "the {t} has a {o}", "check the {t} and {o}", "a {t} and a {o}",
    "this {q} {t} has a {o}", "the {q} {t} and the {o}", "use the {t} with the {o}",
    "the {q} {t} has a {p} {o}", "use a {q} {t} with the {o}", "the {t} and the {o} are {q}",
)  # fmt: skip


def sentence(rng: random.Random, topic: str, other: str | None = None) -> str:
    """A random sentence about ``topic``, and about ``other`` where it has place for one and it is given."""
    quality, second = rng.sample(QUALITIES, 2)
    other = other or rng.choice([word for word in TOPICS if word != topic])
    return rng.choice(FORMS).format(t=topic, o=other, q=quality, p=second)
