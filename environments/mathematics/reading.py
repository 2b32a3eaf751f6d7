"""What an answer says: the final answer is found in the text, and plain numbers are read exactly.

Only one final answer counts: the box, or the last line where there is no box. Two different boxes say
nothing. Everything here is linear in the length of the text and bounds the numbers it makes.
"""

import re
from fractions import Fraction

TAIL = 20_000  # characters at the end of a message in which the answer is looked for
LONGEST = 300  # characters of a final answer

_SPACING = re.compile(r"\\[,;:! ]|\\q?quad(?![a-zA-Z])|~|\\(?:left|right|displaystyle)(?![a-zA-Z])")
_LEAD = re.compile(
    r"(?:so |thus |therefore,? |hence )?(?:the )?(?:final )?(?:answer|result)(?: "
    r"is)?\s*[:=]?\s*",
    re.I,
)
_WHOLE = r"(?:\d{1,3}(?:,\d{3})+|\d{1,60})"
_DECIMAL = rf"(?:{_WHOLE}(?:\.\d{{1,30}})?|\.\d{{1,30}})"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s*(?:"
    rf"(?:(?P<whole>{_WHOLE})(?:\s+|(?=\\)))?"
    rf"(?:\\frac\s*(?:\{{(?P<top>{_WHOLE})\}}|(?P<top1>\d))\s*(?:\{{(?P<low>{_WHOLE})\}}|(?P<low1>\d))"
    rf"|(?P<over>{_WHOLE})\s*/\s*(?P<under>{_WHOLE}))"
    rf"|(?P<decimal>{_DECIMAL})(?:\s*(?:\\times|\\cdot|\*|x|e(?=[+-]?\d))\s*(?:10\s*\^\s*)?"
    rf"\{{?(?P<power>[+-]?\d{{1,2}})\}}?)?"
    rf")\s*(?P<percent>%?)"
)
_NEGATED_FRACTION = re.compile(r"\\frac\s*\{\s*-\s*(\d+)\s*\}")


def final_answer(content: object) -> str | None:
    """The one final answer of an assistant's text, tidied; None where there is none or where two compete."""
    if not isinstance(content, str):
        return None
    content = content[-TAIL:]
    boxes = {tidy(box) for box in _boxes(content)}
    if boxes:
        text = boxes.pop() if len(boxes) == 1 else ""
    else:
        lines = [line for line in content.splitlines() if line.strip()]
        text = _LEAD.sub("", tidy(lines[-1]), count=1) if lines else ""
        text = tidy(text)
    return text if 0 < len(text) <= LONGEST else None


def _boxes(content: str) -> list[str]:
    """What stands in each ``\\boxed{...}`` whose braces close."""
    found, depth, start = [], 0, None
    for token in re.finditer(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", content, re.S):
        text = token[0]
        if text.endswith("{") and len(text) > 2:
            if start is None:
                start, depth = token.end(), 1
            else:
                depth += 1
        elif text == "{" and start is not None:
            depth += 1
        elif text == "}" and start is not None:
            depth -= 1
            if depth == 0:
                found.append(content[start : token.start()])
                start = None
    return found


def tidy(text: str) -> str:
    """An answer without the marks around it: dollar signs, bold, a full stop, spacing commands."""
    text = text.replace("\u2212", "-").replace("\u00d7", r"\times ").replace("{,}", ",")
    text = _SPACING.sub(" ", text).replace(r"\%", "%")
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    text = re.sub(r"\\[()\[\]]|\$|\*\*|`", " ", text)
    return " ".join(text.split()).rstrip(".").strip()


def read_number(text: str, unit: str = "") -> Fraction | None:
    """The rational number that the whole text is, in any usual notation; None for everything else.

    ``1/2``, ``0.5``, ``\\frac12``, ``50%``, ``1 1/2``, ``1,200``, ``3 \\times 10^{4}``, and ``x = 5``.
    """
    text = re.sub(r"^[a-zA-Z](?:_\{?\d\}?)?\s*=\s*", "", text.strip())
    text = re.sub(r"\\text\s*\{([^{}]*)\}|\\mathrm\s*\{([^{}]*)\}", r" \1\2", text)
    if unit:
        text = re.sub(rf"\s*{re.escape(unit)}$", "", text.strip().replace(r"^\circ", " degrees"))
    text = _NEGATED_FRACTION.sub(r"-\\frac{\1}", text.strip())
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    value = _unsigned(match)
    if value is None:
        return None
    return -value if match["sign"] == "-" else value


def _unsigned(match: re.Match) -> Fraction | None:
    scale = Fraction(1, 100) if match["percent"] else Fraction(1)
    if match["decimal"] is not None:
        power = int(match["power"] or 0)
        return Fraction(match["decimal"].replace(",", "")) * Fraction(10) ** power * scale
    top = _int(match["top"] or match["top1"] or match["over"])
    low = _int(match["low"] or match["low1"] or match["under"])
    if low == 0:
        return None
    return (_int(match["whole"] or "0") + Fraction(top, low)) * scale


def _int(text: str) -> int:
    return int(text.replace(",", ""))


def read_numbers(text: str, ordered: bool) -> list[Fraction] | None:
    """The numbers of a list, a pair or a set; None where a part of it is no number.

    ``ordered`` reads ``(3, 4)`` and ``x = 3, y = 4``; otherwise ``\\{3, 4\\}``, ``x = 3 or x = 4``.
    """
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text)
    text = re.sub(r"^[a-zA-Z]\s*\\in\s*", "", text)
    text = re.sub(r"\s+(?:or|and)\s+|;", ",", text).replace(r"\{", "").replace(r"\}", "").strip()
    if ordered:
        text = re.sub(r"^\([^()=]*\)\s*=\s*", "", text)
        text = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    numbers = []
    for part in text.split(","):
        both = re.fullmatch(r"\s*(?:[a-zA-Z]\s*=\s*)?(?:\\pm|±)\s*(.*)", part)
        value = read_number(both[1] if both else part)
        if value is None or (both and ordered):
            return None
        numbers += [value, -value] if both else [value]
    return numbers
