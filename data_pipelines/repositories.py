"""The files of one package, each after the files that it imports and under a line that names its path.

As in DeepSeek-Coder (arXiv 2401.14196, section 2.2).
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePosixPath

from data_pipelines.documents import Document

IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<origin>\.*[\w.]*)[ \t]+import[ \t]*"
    r"(?:\((?P<several>[^)]*)\)|(?P<names>[^\n#(]*))"
    r"|import[ \t]+(?P<modules>[\w., \t]+))",
    re.MULTILINE,
)
COMMENT = re.compile(r"#.*")
NAME = re.compile(r"(?:^|,)\s*(\w+)")


def repositories(documents: Iterable[Document]) -> dict[str, list[Document]]:
    """Package -> its Python files in import order, for packages with at least two."""
    packages: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        if document.language == "python":
            packages[document.package].append(document)
    return {name: in_import_order(files) for name, files in sorted(packages.items()) if len(files) > 1}


def file_with_path(file: Document) -> str:
    return f"# file: {file.path}\n{file.text.rstrip()}\n\n"


def in_import_order(files: list[Document]) -> list[Document]:
    """Each file after those it imports. In a circle of imports the file that waits for the fewest others
    goes first; ties go to the lower path."""
    by_path = {file.path: file for file in sorted(files, key=lambda file: file.path)}
    waits = imports_of(by_path)
    ordered: list[Document] = []
    while waits:
        path = min(waits, key=lambda path: (len(waits[path]), path))
        ordered.append(by_path[path])
        del waits[path]
        for others in waits.values():
            others.discard(path)
    return ordered


def imports_of(files: dict[str, Document]) -> dict[str, set[str]]:
    """Path -> paths of the other given files that it imports."""
    modules = {_module(path): path for path in files}
    return {path: _imported(path, file.text, modules) - {path} for path, file in files.items()}


def _module(path: str) -> str:
    """``a/b/c.py`` -> ``a.b.c``; ``a/b/__init__.py`` -> ``a.b``."""
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: str, text: str, modules: dict[str, str]) -> set[str]:
    package = PurePosixPath(path).parent.parts
    found: set[str] = set()
    for match in IMPORT.finditer(text):
        if match["modules"] is not None:
            names = {name.split(" as ")[0].strip() for name in match["modules"].split(",")}
        else:
            origin = _absolute(match["origin"], package)
            members = NAME.findall(COMMENT.sub("", match["several"] or match["names"] or ""))
            inside = [f"{origin}.{member}" if origin else member for member in members]
            # What is no module is defined in the module that it is imported from.
            names = {name if name in modules else origin for name in inside}
        found.update(modules[name] for name in names if name in modules)
    return found


def _absolute(origin: str, package: tuple[str, ...]) -> str:
    """The module that ``from <origin> import`` names in a file of ``package``."""
    name = origin.lstrip(".")
    level = len(origin) - len(name)
    if level == 0:
        return name
    base = package[: len(package) - (level - 1)]
    return ".".join([*base, name] if name else base)
