"""Which files a source's ``max_mb`` takes: fair over packages, in an order that seed and names decide."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from data_pipelines.documents import Document, rank
from data_pipelines.sources.files import Notes, SourceFile, Unusable


def take(files: Iterable[SourceFile], max_mb: float | None, seed: int, notes: Notes) -> Iterator[Document]:
    """Documents of ``files`` until ``max_mb`` of text. What cannot be read goes to ``notes``.

    Small packages are taken whole and the large ones get equal shares; within a package whole folders are
    taken one after the other, so that files which import each other stay together.
    """
    packages: dict[str, list[SourceFile]] = defaultdict(list)
    for file in files:
        packages[file.package].append(file)
    limit = None if max_mb is None else max_mb * 1e6
    share = fair_share([sum(file.size for file in group) for group in packages.values()], limit)
    total = 0
    for package in sorted(packages, key=lambda name: rank(seed, name)):
        taken = 0
        for document in _read(_folders_in_turn(packages[package], seed), notes):
            size = len(document.text)
            if limit is not None and ((taken and taken + size / 2 > share) or total >= limit):
                break
            taken += size
            total += size
            yield document


def fair_share(sizes: list[int], limit: float | None) -> float:
    """The largest cap such that packages of these sizes, each cut to the cap, stay within ``limit``."""
    if limit is None or sum(sizes) <= limit:
        return float("inf")
    left, waiting = limit, len(sizes)
    for size in sorted(sizes):
        if size * waiting > left:
            break
        left -= size
        waiting -= 1
    return left / waiting


def _folders_in_turn(files: list[SourceFile], seed: int) -> list[SourceFile]:
    def key(file: SourceFile) -> tuple[str, str]:
        return rank(seed, file.package, file.path.rpartition("/")[0]), file.path

    return sorted(files, key=key)


def _read(files: list[SourceFile], notes: Notes) -> Iterator[Document]:
    for file in files:
        try:
            yield from file.read()
        except Unusable as reason:
            notes.skip(file.path, str(reason))
