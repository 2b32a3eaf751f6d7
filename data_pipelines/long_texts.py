"""The three kinds of text that mid-training reads, each an endless seeded stream for a context length.

A text is drawn some contexts long at most, so that a short context still sees many packages and documents.
"""

import math
import random
from collections.abc import Callable, Iterator

from data_pipelines.documents import Document
from data_pipelines.haystack import haystack_lines
from data_pipelines.repositories import file_with_path, repositories
from data_pipelines.tokens import Encoder
from environments import long_context
from pipeline.errors import UserError

CHARACTERS_PER_TOKEN = 4  # about, for choosing lengths; the split into contexts counts real tokens
CONTEXTS_PER_TEXT = 2
SHORTEST_ITEM = 64  # tokens; from here to the context items are of all lengths, evenly on a log scale
HAYSTACK_DOCUMENTS = 400

Text = tuple[str, bool]  # and whether it goes to its end, where <|endoftext|> belongs
Texts = Callable[[int], Iterator[Text]]  # context length in tokens -> texts without end


def repository_texts(documents: list[Document], encoder: Encoder, seed: int) -> Texts:
    """Neighbouring files of a package, in import order, from a random file on."""
    packages = list(repositories(documents).values())
    if not packages:
        raise UserError(
            "no package has two Python files: set midtrain_data.repository to 0 or collect packages"
        )

    def texts(length: int) -> Iterator[Text]:
        for files, rng in _shuffled(packages, f"repository/{seed}/{length}"):
            first = rng.randrange(len(files))
            text = ""
            for file in files[first:]:
                text += file_with_path(file)
                if len(text) >= _characters(length):
                    break
            yield text[: _characters(length)], file is files[-1] and len(text) <= _characters(length)

    return texts


def long_documents(documents: list[Document], encoder: Encoder, seed: int) -> Texts:
    """Stretches of documents longer than a context; of the longest that there are, when none is so long."""
    by_length = sorted(documents, key=lambda document: (-len(document.text), document.id))

    def texts(length: int) -> Iterator[Text]:
        long = [document for document in by_length if len(document.text) >= length * CHARACTERS_PER_TOKEN]
        for document, rng in _shuffled(long or by_length[:8], f"long/{seed}/{length}"):
            text = document.text
            start = rng.randrange(max(len(text) - _characters(length), 0) + 1)
            start = text.rfind("\n", 0, start) + 1
            stop = start + _characters(length)
            yield text[start:stop], stop >= len(text)

    return texts


def synthetic(documents: list[Document], encoder: Encoder, seed: int) -> Texts:
    """Items of every kind that evaluation knows, with keys that evaluation never asks for."""
    chosen = random.Random(f"haystack/{seed}").sample(documents, min(HAYSTACK_DOCUMENTS, len(documents)))
    haystack = haystack_lines(chosen)
    tasks = list(long_context.TASKS)

    def texts(length: int) -> Iterator[Text]:
        rng = random.Random(f"synthetic/{seed}/{length}")
        while True:
            target = round(math.exp(rng.uniform(math.log(SHORTEST_ITEM), math.log(length - 1))))
            item = long_context.make_item(rng.choice(tasks), rng, haystack, encoder.count, target)
            yield item.prompt + item.completion, True

    return texts


def _characters(length: int) -> int:
    return length * CONTEXTS_PER_TEXT * CHARACTERS_PER_TOKEN


def _shuffled(items: list, name: str) -> Iterator[tuple]:
    """(item, generator) without end, every item once a pass."""
    rng = random.Random(name)
    while True:
        for item in rng.sample(items, len(items)):
            yield item, rng


KINDS: dict[str, Callable[[list[Document], Encoder, int], Texts]] = {
    "repository": repository_texts,
    "long_documents": long_documents,
    "synthetic": synthetic,
}
