"""The Python that is already here: the interpreter's standard library and the installed distributions.

Code files, and as prose the language reference inside ``pydoc_data`` and each distribution's description and
documents. Tests, vendored copies of other packages and data files are left out.
"""

import ast
import platform
import re
import sysconfig
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from pathlib import Path, PurePosixPath

from data_pipelines.documents import Document
from data_pipelines.sources.files import LANGUAGES, Notes, SourceFile, Unusable, read_text
from data_pipelines.sources.licences import licence_of
from pipeline.errors import UserError
from pipeline.recipe.data import Source

STDLIB = "stdlib"
STDLIB_LICENCE = "PSF-2.0"
OWN_NAME = "glm5-pipeline"  # the project is not its own training data
LARGEST_FILE = 400_000  # bytes; larger modules are tables or generated
LEFT_OUT = {
    "test", "tests", "idle_test", "testing", "testdata", "fixtures", "__pycache__", "site-packages",
    "lib-dynload", "_bundled", "_vendor", "_vendored", "vendor", "vendored", "extern", "external",
    "third_party", "node_modules",
}  # fmt: skip
# Text files that say nothing about the package.
NOT_PROSE = re.compile(
    r"licen[cs]e|copying|notice|authors|credits|requirements|constraints|entry_points|top_level|record|vendor"
    r"|cmakelists|namespace_packages|sbom|vocab|words|zone|mime",
    re.IGNORECASE,
)
TOPICS = "pydoc_data/topics.py"


def files(source: Source, notes: Notes, downloads: Path) -> Iterator[SourceFile]:
    """Files of the packages that ``source.packages`` names; if it names none, of all distributions."""
    wanted = source.packages
    if wanted is None or set(wanted) != {STDLIB}:
        yield from _installed(source.name, None if wanted is None else set(wanted) - {STDLIB}, notes)
    if wanted is not None and STDLIB in wanted:
        yield from _standard_library(source.name, notes)


def _standard_library(source: str, notes: Notes) -> Iterator[SourceFile]:
    root = Path(sysconfig.get_path("stdlib"))
    notes.versions[STDLIB] = platform.python_version()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if LEFT_OUT & set(PurePosixPath(name).parts) or name.startswith(("_sysconfigdata", "config-")):
            continue
        folder = name.split("/")[0] if "/" in name else ""
        package = f"{STDLIB}/{folder}" if folder else STDLIB
        read = partial(
            _topics if name == TOPICS else _whole_file, path, name, source, package, STDLIB_LICENCE
        )
        yield SourceFile(name, package, path.stat().st_size, read)


def _installed(source: str, wanted: set[str] | None, notes: Notes) -> Iterator[SourceFile]:
    distributions = {_normal(d.metadata["Name"]): d for d in metadata.distributions() if d.metadata["Name"]}
    missing = sorted(name for name in wanted or () if _normal(name) not in distributions)
    if missing:
        raise UserError(
            f"source {source}: {', '.join(missing)} is not installed in this environment: install it or "
            "leave it out of the recipe"
        )
    names = sorted(distributions) if wanted is None else sorted(map(_normal, wanted))
    seen: set[str] = set()  # some distributions ship the same files
    for name in names:
        if name != OWN_NAME:
            notes.versions[name] = distributions[name].version
            yield from _distribution(distributions[name], name, source, seen)


def _distribution(
    distribution: metadata.Distribution, name: str, source: str, seen: set[str]
) -> Iterator[SourceFile]:
    licence = licence_of(distribution.metadata)
    description = distribution.metadata.get_payload() or distribution.metadata.get("Description") or ""
    if len(description) > 1:
        read = partial(_description, distribution, name, source, licence)
        yield SourceFile(f"{name}/description", name, len(description.encode()), read)
    for entry in sorted(distribution.files or (), key=str):
        path = entry.as_posix()
        if path in seen or not _is_text(PurePosixPath(path)):
            continue
        seen.add(path)
        located = Path(str(entry.locate()))
        size = located.stat().st_size if located.is_file() else 0
        if 0 < size <= LARGEST_FILE:
            yield SourceFile(path, name, size, partial(_whole_file, located, path, source, name, licence))


def _is_text(path: PurePosixPath) -> bool:
    if (
        LEFT_OUT & set(path.parts)
        or ".." in path.parts
        or path.parts[0].endswith((".dist-info", ".egg-info", ".data"))
    ):
        return False
    if path.suffix == ".py":
        return True
    return path.suffix in (".md", ".rst", ".txt") and not NOT_PROSE.search(path.name)


def _whole_file(path: Path, name: str, source: str, package: str, licence: str) -> Iterator[Document]:
    language, kind = LANGUAGES[path.suffix]
    yield Document(read_text(path), source, name, package, licence, language, kind)


def _description(
    distribution: metadata.Distribution, name: str, source: str, licence: str
) -> Iterator[Document]:
    text = distribution.metadata.get_payload() or distribution.metadata["Description"]
    kind = distribution.metadata.get("Description-Content-Type", "text/x-rst")
    language = "markdown" if "markdown" in kind else "rst"
    yield Document(
        text.replace("\r\n", "\n"), source, f"{name}/description", name, licence, language, "prose"
    )


def _topics(path: Path, name: str, source: str, package: str, licence: str) -> Iterator[Document]:
    """The language reference: a dictionary of texts in a Python file, which is read without running it."""
    for statement in ast.parse(read_text(path)).body:
        if isinstance(statement, ast.Assign):
            for topic, text in ast.literal_eval(statement.value).items():
                yield Document(text, source, f"{name}#{topic}", package, licence, "en", "prose")
            return
    raise Unusable("it holds no topics")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
