"""The running interpreter's standard library as a search corpus: which module imports which, what it defines.

Needs no download. A module's article is its docstring and the lines that import and define.
"""

import ast
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from environments.search.corpus import Corpus, Document, Entity, Fact, Relation

RELATIONS = [
    Relation("imports", "{subject} imports {object}", "link", True),
    Relation("defines_class", "the classes that {subject} defines include {object}", "attribute", True),
    Relation("defines_function", "the functions that {subject} defines include {object}", "attribute", True),
]
VERBS = {
    "imports": "imports",
    "defines_class": "defines the class",
    "defines_function": "defines the function",
}


def read_modules(source: dict[str, str]) -> Corpus:
    """Every plain module at the top of the standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in sorted(folder.glob("*.py")) if path.stem in sys.stdlib_module_names]
    return corpus_of({path.stem: path.read_text(encoding="utf-8") for path in files}, source)


def corpus_of(texts: dict[str, str], source: dict[str, str]) -> Corpus:
    entities = {f"module/{name}": Entity(f"module/{name}", "module", name) for name in texts}
    documents, facts = [], []
    for name, text in texts.items():
        tree = ast.parse(text)
        lines = [f"The module {name}.", *(ast.get_docstring(tree) or "").splitlines()]
        found: dict[tuple[str, str], int] = {}
        for relation, kind, other in _statements(tree):
            object_ = f"{kind}/{other}"
            if kind != "module":
                entities.setdefault(object_, Entity(object_, kind, other))
            if object_ in entities and object_ != f"module/{name}" and (relation, object_) not in found:
                lines.append(f"{name} {VERBS[relation]} {other}")
                found[relation, object_] = len(lines)
        facts += [
            Fact(relation, f"module/{name}", object_, f"module-{name}", line)
            for (relation, object_), line in found.items()
        ]
        documents.append(Document(f"module-{name}", name, "\n".join(lines), source["name"]))
    return Corpus("modules", RELATIONS, documents, list(entities.values()), facts, [source])


def _statements(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Relation, kind and name of what a module imports anywhere and defines at its top."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield "imports", "module", alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield "imports", "module", node.module.partition(".")[0]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield "defines_class", "class", node.name
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield "defines_function", "function", node.name
