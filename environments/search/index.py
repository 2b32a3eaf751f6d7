"""BM25 over the documents of a corpus: the search engine behind the tool ``search``."""

import re
import unicodedata

import bm25s
import numpy as np

from environments.search.corpus import Document

WORD = re.compile(r"[a-z0-9]+")
STOP_WORDS = frozenset(
    "a an and are as at be by for from has have in is it its of on or that the this to was which with".split()
)


def words(text: str) -> list[str]:
    """Lower-case words without accents and without the most frequent ones."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(character for character in plain if not unicodedata.combining(character))
    return [word for word in WORD.findall(plain) if word not in STOP_WORDS]


class Index:
    """Titles count as text. Equal scores keep the order of the documents, so results repeat."""

    def __init__(self, documents: list[Document]):
        self._documents = documents
        self._bm25 = bm25s.BM25(k1=1.5, b=0.75)
        self._bm25.index([words(f"{d.title}\n{d.text}") for d in documents], show_progress=False)

    def search(self, query: str, count: int) -> list[Document]:
        """The best documents that share a word with the query, best first."""
        asked = words(query)
        if not asked:
            return []
        scores = self._bm25.get_scores(asked)
        order = np.argsort(-scores, kind="stable")[:count]
        return [self._documents[i] for i in order if scores[i] > 0]
