"""Rules for prose, after Gopher (arXiv 2112.11446, table A1) and C4 (arXiv 1910.10683, section 2.2).

Technical text is what this corpus is made of, so the share of plain words is asked for more gently than in
Gopher (references and fact sheets are full of numbers), "#" at the start of a line is a heading or a
comment and not a symbol, and C4's rule against curly braces is left out.
"""

import re
from collections import Counter

WORD = re.compile(r"\S+")
SYMBOL = re.compile(r"(?<=[^\s#])#|\.\.\.|\u2026")
LETTER = re.compile(r"[^\W\d_]")
STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with", "is", "a", "in", "for"}
LEAST_WORDS = 30
MEAN_WORD = (2.5, 12.0)  # characters
SYMBOLS_PER_WORD = 0.1  # "#" or an ellipsis; Gopher
BULLET_LINES = 0.9  # Gopher
ELLIPSIS_LINES = 0.3  # Gopher
ALPHABETIC_WORDS = 0.6  # Gopher asks for 0.8
REPEATED_LINES = 0.3  # share of lines that occur elsewhere in the text; Gopher
TOP_BIGRAM = 0.2  # share of the characters in the most frequent pair of words; Gopher


def reason_to_drop(text: str) -> str | None:
    """Why a prose document is not worth reading, or None."""
    words = WORD.findall(text)
    if len(words) < LEAST_WORDS:
        return "few words"
    mean = sum(map(len, words)) / len(words)
    if not MEAN_WORD[0] <= mean <= MEAN_WORD[1]:
        return "odd word lengths"
    if len(SYMBOL.findall(text)) / len(words) > SYMBOLS_PER_WORD:
        return "many symbols"
    if sum(LETTER.search(word) is not None for word in words) / len(words) < ALPHABETIC_WORDS:
        return "few plain words"
    if len(STOP_WORDS & {word.lower() for word in words}) < 2:
        return "no running English"
    if "lorem ipsum" in text.lower():
        return "placeholder text"
    return _lines(text) or _repetition(words)


def _lines(text: str) -> str | None:
    lines = [stripped for line in text.splitlines() if (stripped := line.strip())]
    if sum(line.startswith(("- ", "* ", "\u2022")) for line in lines) / len(lines) > BULLET_LINES:
        return "only bullets"
    if sum(line.endswith(("...", "\u2026")) for line in lines) / len(lines) > ELLIPSIS_LINES:
        return "cut lines"
    counts = Counter(line for line in lines if len(line) > 3)  # rules and brackets repeat in good text too
    if sum(count - 1 for count in counts.values()) / len(lines) > REPEATED_LINES:
        return "repeated lines"
    return None


def _repetition(words: list[str]) -> str | None:
    pairs = Counter(zip(words, words[1:], strict=False))
    (first, second), count = pairs.most_common(1)[0]
    share = count * (len(first) + len(second)) / sum(map(len, words))
    return "repeated phrase" if count > 3 and share > TOP_BIGRAM else None
