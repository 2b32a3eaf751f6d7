"""WordNet's nouns as a search corpus: a short article a concept, what kind and what part of what it is.

From the Debian package ``wordnet-base`` (format: wndb(5WN)). A concept is taken by a name that no other noun
has, since a question could not tell senses of one word apart; concepts without such a name are left out.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data_pipelines.search_corpora.debian import read_members
from environments.search.corpus import Corpus, Document, Entity, Fact, Relation
from environments.search.names import normal
from pipeline.errors import UserError

FILE = "usr/share/wordnet/data.noun"
# Pointer symbol -> relation and statement; the article of the subject states it.
POINTERS = {
    "@": ("kind_of", "{subject} is a kind of {object}"),
    "@i": ("instance_of", "{subject} is an instance of {object}"),
    "#p": ("part_of", "{subject} is a part of {object}"),
    "#m": ("member_of", "{subject} is a member of {object}"),
    "#s": ("substance_of", "{subject} is a substance of {object}"),
}


@dataclass(frozen=True)
class Synset:
    offset: str
    words: tuple[str, ...]
    pointers: tuple[tuple[str, str], ...]  # relation, offset of the other noun
    gloss: str


def read_wordnet(package: Path, source: dict[str, str]) -> Corpus:
    content = read_members(package, (FILE,))[FILE].decode()
    try:
        return corpus_of(list(synsets(content)), source)
    except (ValueError, IndexError) as error:
        raise UserError(f"{FILE} in {package} is not WordNet's noun file ({error})") from None


def synsets(content: str) -> Iterator[Synset]:
    for line in content.splitlines():
        if line.startswith(" "):  # the licence
            continue
        data, _, gloss = line.partition(" | ")
        parts = data.split()
        count = int(parts[3], 16)
        words = tuple(word.replace("_", " ") for word in parts[4 : 4 + 2 * count : 2])
        rest = parts[5 + 2 * count :]
        pointers = [
            (POINTERS[symbol][0], offset)
            for symbol, offset, part in zip(rest[::4], rest[1::4], rest[2::4], strict=False)
            if symbol in POINTERS and part == "n"
        ]
        yield Synset(parts[0], words, tuple(pointers), gloss.strip())


def corpus_of(found: list[Synset], source: dict[str, str]) -> Corpus:
    holders = Counter(name for synset in found for name in {normal(word) for word in synset.words})
    names = {
        synset.offset: [word for word in synset.words if holders[normal(word)] == 1 and normal(word)]
        for synset in found
    }
    statements = dict(POINTERS.values())
    relations = [Relation(name, statement, "link", True) for name, statement in POINTERS.values()]
    documents, entities, facts = [], [], []
    for synset in found:
        if not names[synset.offset]:
            continue
        id_, (name, *aliases) = f"wordnet/{synset.offset}", names[synset.offset]
        entities.append(Entity(id_, "concept", name, tuple(aliases)))
        lines = [f"{', '.join(synset.words)}: {synset.gloss}"]
        for relation, other in synset.pointers:
            if names.get(other):
                lines.append(statements[relation].format(subject=name, object=names[other][0]))
                facts.append(Fact(relation, id_, f"wordnet/{other}", f"wordnet-{synset.offset}", len(lines)))
        documents.append(Document(f"wordnet-{synset.offset}", name, "\n".join(lines), source["name"]))
    return Corpus("wordnet", relations, documents, entities, facts, [source])
