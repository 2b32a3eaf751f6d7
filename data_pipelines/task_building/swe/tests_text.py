"""Test functions in source files: found by id, quoted for an instruction, taken out of the agent's copy."""

import ast
import textwrap
from dataclasses import dataclass

LONGEST_QUOTE = 40  # lines


@dataclass(frozen=True)
class TestFunction:
    file: str
    name: str  # with its classes: "TestA::test_b"
    docstring: str  # its first paragraph, one line
    source: str


def function_of(test: str) -> tuple[str, str]:
    """File and function of a pytest id: the parameters in brackets are left out."""
    file, _, name = test.partition("::")
    return file, name.partition("[")[0]


def find_functions(tests: list[str], files: dict[str, str]) -> list[TestFunction] | None:
    """The functions behind test ids, each once, in the order of the files; None where one cannot be found."""
    wanted = sorted({function_of(test) for test in tests})
    found = []
    for file, name in wanted:
        node = _nodes(files.get(file, "")).get(name)
        if node is None:
            return None
        docstring = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
        found.append(TestFunction(file, name, docstring, _source(files[file], node)))
    return found


def without_functions(text: str, names: set[str]) -> str:
    """A test file without some of its functions; a class that has nothing left goes, too."""
    nodes = _nodes(text)
    gone = {name for name in names if name in nodes}
    for name, node in nodes.items():
        if isinstance(node, ast.ClassDef):
            tests = {other for other in nodes if other.startswith(name + "::")}
            only_tests = all(
                isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
                for statement in node.body
            )
            if tests and tests <= gone and only_tests:
                gone.add(name)
    lines = text.splitlines(keepends=True)
    for name in gone:
        first, last = _extent(nodes[name])
        for number in range(first - 1, last):
            lines[number] = ""
    return "".join(lines)


def _nodes(text: str) -> dict[str, ast.AST]:
    """Functions and classes by name, classes joined by ``::`` as pytest does."""
    try:
        return dict(_walk(ast.parse(text), ""))
    except SyntaxError:
        return {}


def _walk(node: ast.AST, prefix: str):
    for child in getattr(node, "body", []):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from _walk(child, f"{prefix}{child.name}::")


def _extent(node) -> tuple[int, int]:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]), node.end_lineno


def _source(text: str, node) -> str:
    first, last = _extent(node)
    lines = text.splitlines()[first - 1 : last]
    if len(lines) > LONGEST_QUOTE:
        lines = [*lines[:LONGEST_QUOTE], " " * (node.col_offset + 4) + "..."]
    return textwrap.dedent("\n".join(lines))
