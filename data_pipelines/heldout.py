"""Which documents are held out for evaluation: by hash, in whole packages where a source has many of them."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from data_pipelines.documents import Document, rank

MANY_PACKAGES = 50
LARGEST_SHARE = 0.1  # of a source's characters in one package, for packages to be the unit


@dataclass(frozen=True)
class Outline:
    """A document without its text."""

    id: str
    source: str
    package: str
    path: str
    characters: int

    @classmethod
    def of(cls, document: Document) -> "Outline":
        return cls(document.id, document.source, document.package, document.path, len(document.text))


def choose_heldout(outlines: Iterable[Outline], fraction: float, seed: int) -> set[str]:
    """The chosen ids.

    In each source units (whole packages, or documents) are taken in the order of their hash until
    ``fraction`` of its characters is reached, so at least one unit of every source is held out. A source
    with a single unit gives nothing: training needs it.
    """
    sources: dict[str, list[Outline]] = defaultdict(list)
    for outline in outlines:
        sources[outline.source].append(outline)
    chosen: set[str] = set()
    for source in sorted(sources):
        chosen |= _choose(sources[source], source, fraction, seed)
    return chosen


def _choose(outlines: list[Outline], source: str, fraction: float, seed: int) -> set[str]:
    total = sum(outline.characters for outline in outlines)
    packages = Counter()
    for outline in outlines:
        packages[outline.package] += outline.characters
    by_package = len(packages) >= MANY_PACKAGES and max(packages.values()) <= LARGEST_SHARE * total
    groups: dict[str, list[Outline]] = defaultdict(list)
    for outline in outlines:
        groups[outline.package if by_package else outline.id].append(outline)
    chosen: set[str] = set()
    taken = 0
    for name in sorted(groups, key=lambda name: rank(seed, "heldout", source, name))[:-1]:
        if taken >= fraction * total:
            break
        for outline in groups[name]:
            chosen.add(outline.id)
            taken += outline.characters
    return chosen
