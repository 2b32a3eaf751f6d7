"""Names as they are compared: case, accents, punctuation and a leading article do not count."""

import re
import unicodedata
from collections import Counter

from environments.search.corpus import Entity

ARTICLES = ("the ", "a ", "an ")
APOSTROPHES = re.compile(r"['`\u2018\u2019\u02bb\u02bc]")
NO_WORD = re.compile(r"[^\w.]+|\.(?!\d)|(?<!\d)\.|_")


def normal(text: str) -> str:
    """``"The C\u00f4te d'Ivoire."`` to ``"cote divoire"``; points inside numbers stay, commas go."""
    plain = text.casefold().replace("&", " and ")
    if not plain.isascii():
        plain = unicodedata.normalize("NFKD", plain)
        plain = "".join(character for character in plain if not unicodedata.combining(character))
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", APOSTROPHES.sub("", plain))
    plain = " ".join(NO_WORD.sub(" ", plain).split())
    for article in ARTICLES:
        if plain.startswith(article):
            return plain[len(article) :]
    return plain


class Names:
    """What is accepted for an entity, and what would give it away. An alias of two entities is no answer."""

    def __init__(self, entities: dict[str, Entity]):
        own = {e.id: {normal(name) for name in (e.name, *e.aliases)} - {""} for e in entities.values()}
        holders = Counter((entities[id_].kind, name) for id_, names in own.items() for name in names)
        self.accepted = {
            id_: sorted(
                {normal(entities[id_].name)} | {n for n in names if holders[entities[id_].kind, n] == 1}
            )
            for id_, names in own.items()
        }
        self._telling = {
            e.id: [f" {name} " for name in own[e.id] | {normal(hint) for hint in e.hints} if name]
            for e in entities.values()
        }

    def are_told(self, entities: list[str], text: str) -> bool:
        """Whether a text names one of the entities or has a word that gives it away."""
        padded = f" {normal(text)} "
        return any(name in padded for entity in entities for name in self._telling[entity])
