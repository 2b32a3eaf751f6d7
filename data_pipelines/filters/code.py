"""Rules for source code, after the data of StarCoder (arXiv 2305.06161, section 3.1).

Long lines, few letters, generated files, encoded data; and two of our own, tables of literals and files
that are all comment. Python must parse.
"""

import ast
import re
import warnings

MEAN_LINE = 100  # characters; StarCoder
ALPHABETIC = 0.25  # of all characters that are not space; StarCoder
TABLE_LINES = 0.6  # share of lines that hold nothing but literals
LEAST_TABLE = 40  # lines
LEAST_CODE = 3  # lines besides comments and blank lines
HEAD = 1500  # characters in which a generator leaves its mark
GENERATED = re.compile(
    r"auto-?(?:matically )?generated|generated (?:by|from|with|using|automatically)\b"
    r"|\bdo not (?:edit|modify)|@generated",
    re.IGNORECASE,
)
ENCODED = re.compile(r"[A-Za-z0-9+/]{512,}|(?:\\x[0-9a-fA-F]{2}){64,}|(?:0x[0-9a-fA-F]{2,8},\s*){64,}")
STRINGS = re.compile(r"""[rbuf]?"[^"]*"|[rbuf]?'[^']*'|\b(?:None|True|False)\b""")
NUMBERS = re.compile(r"[\s\[\](){},:;\d.+\-_xXeEjJ]*|[\s\[\](){},]*0[xX][\da-fA-F]+[\s\[\](){},]*")
LETTERS = re.compile(r"[^\W\d_]+")
COMMENT = {"python": ("#",), "shell": ("#",), "ruby": ("#",)}
SLASHES = ("//", "/*", "*", "*/")


def reason_to_drop(text: str, language: str, longest_line: int) -> str | None:
    """Why a source file is not worth reading, or None. ``longest_line`` in characters."""
    lines = text.splitlines()
    if max(map(len, lines), default=0) > longest_line or len(text) / max(len(lines), 1) > MEAN_LINE:
        return "long lines"
    solid = [stripped for line in lines if (stripped := line.strip())]
    letters = sum(map(len, LETTERS.findall(text)))
    if letters < ALPHABETIC * sum(map(len, solid)):
        return "few letters"
    if GENERATED.search(_comments(solid, language, text)):
        return "generated"
    if ENCODED.search(text):
        return "encoded data"
    marks = COMMENT.get(language, SLASHES)
    if sum(not line.startswith(marks) for line in solid) < LEAST_CODE:
        return "only comments"
    if len(solid) >= LEAST_TABLE and sum(map(_is_literal, solid)) > TABLE_LINES * len(solid):
        return "table of literals"
    if language == "python" and not _parses(text):
        return "does not parse"
    return None


def _comments(solid: list[str], language: str, text: str) -> str:
    """The comment lines at the head of a file: code there may well be about generated things."""
    marks = COMMENT.get(language, SLASHES) + ('"""', "'''")
    head = text[:HEAD].count("\n") + 1
    return "\n".join(line for line in solid[:head] if line.startswith(marks))


def _is_literal(line: str) -> bool:
    return NUMBERS.fullmatch(STRINGS.sub("", line)) is not None


def _parses(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True
