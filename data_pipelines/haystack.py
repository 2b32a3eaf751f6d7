"""The lines among which long-context items hide their needles, of one kind for training and evaluation."""

from collections.abc import Iterable

from data_pipelines.documents import Document

LINE = (20, 120)  # characters


def haystack_lines(documents: Iterable[Document]) -> list[str]:
    """Lines of some length, stripped, in the order of the documents."""
    shortest, longest = LINE
    lines = (line.strip() for document in documents for line in document.text.splitlines())
    return [line for line in lines if shortest <= len(line) <= longest]
