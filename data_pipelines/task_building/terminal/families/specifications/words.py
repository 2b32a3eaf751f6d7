"""Programs on words and tables: an order that keeps to rules, columns, wrapped text."""

import heapq
import random
from typing import Any

from data_pipelines.task_building.terminal.families.specifications.refuse import REFUSE
from data_pipelines.task_building.terminal.families.text import WORDS


def order(rng: random.Random) -> dict[str, Any]:
    arrow = rng.choice(["->", "<", "needs"])
    swapped = arrow == "needs"
    program = (
        REFUSE
        + f"""
after = {{}}
for line in sys.stdin.read().splitlines():
    words = line.split()
    if len(words) == 1:
        after.setdefault(words[0], set())
    elif len(words) == 3 and words[1] == {arrow!r}:
        first, last = (words[2], words[0]) if {swapped} else (words[0], words[2])
        after.setdefault(first, set())
        after.setdefault(last, set()).add(first)
    else:
        refuse("no rule: " + line)
done = []
while len(done) < len(after):
    free = sorted(name for name in after if name not in done and after[name] <= set(done))
    if not free:
        refuse("a circle")
    done.append(free[0])
for name in done:
    print(name)
"""
    )

    def answer(text: str) -> str:
        names, edges, waiting = set(), set(), {}
        for line in text.splitlines():
            words = line.split()
            names.update(words[::2])
            if len(words) == 3:
                edges.add((words[2], words[0]) if swapped else (words[0], words[2]))
        for name in names:
            waiting[name] = sum(last == name for _, last in edges)
        free = [name for name in names if waiting[name] == 0]
        heapq.heapify(free)
        lines = []
        while free:
            name = heapq.heappop(free)
            lines.append(f"{name}\n")
            for first, last in edges:
                if first == name:
                    waiting[last] -= 1
                    if waiting[last] == 0:
                        heapq.heappush(free, last)
        return "".join(lines)

    def draw(rng: random.Random) -> str:
        names = rng.sample(WORDS, rng.randint(3, 8))
        lines = [names[-1]]
        for _ in range(rng.randint(2, 9)):
            one, two = sorted(rng.sample(range(len(names)), 2))
            first, last = names[one], names[two]
            lines.append(f"{last} {arrow} {first}" if swapped else f"{first} {arrow} {last}")
        rng.shuffle(lines)
        return "\n".join(lines) + "\n"

    meaning = "A comes after B" if swapped else "A comes before B"
    text = (
        f"Each line of the input is either a name or `A {arrow} B`, which says that {meaning}; names are "
        "words without white space. It prints all names that occur, each once, one a line, in an order that "
        "keeps to all rules: at each place the name that is first in byte order among those whose "
        "predecessors have all been printed. A circle and lines of another form are wrong input."
    )
    one, two, three = WORDS[:3]
    wrong = [
        f"{one} {arrow} {two}\n{two} {arrow} {three}\n{three} {arrow} {one}\n",
        f"{one} {two}\n",
        f"{one} {arrow}\n",
    ]
    return {
        "title": "An order that keeps to rules",
        "text": text,
        "program": program,
        "arguments": [],
        "answer": answer,
        "draw": draw,
        "wrong": wrong,
    }


def columns(rng: random.Random) -> dict[str, Any]:
    separator, operation = (
        rng.choice([",", ";", "\t", "|"]),
        rng.choice(["sum", "largest", "smallest", "spread"]),
    )
    python = {
        "sum": "sum(column)",
        "largest": "max(column)",
        "smallest": "min(column)",
        "spread": "max(column) - min(column)",
    }[operation]
    program = (
        REFUSE
        + f"""
rows = [line.split({separator!r}) for line in sys.stdin.read().splitlines()]
if len(rows) < 2:
    refuse("a header and at least one row are needed")
header, *rows = rows
for row in rows:
    if len(row) != len(header):
        refuse("a row of another length: " + repr(row))
for index, name in enumerate(header):
    try:
        column = [int(row[index]) for row in rows]
    except ValueError:
        continue
    print(f"{{name}} {{{python}}}")
"""
    )

    def answer(text: str) -> str:
        header, *rows = [line.split(separator) for line in text.splitlines()]
        lines = []
        for name, *cells in zip(header, *rows, strict=True):
            if all(cell.removeprefix("-").isdigit() for cell in cells):
                ordered = sorted(map(int, cells))
                value = {
                    "sum": sum(ordered),
                    "largest": ordered[-1],
                    "smallest": ordered[0],
                    "spread": ordered[-1] - ordered[0],
                }[operation]
                lines.append(f"{name} {value}\n")
        return "".join(lines)

    def draw(rng: random.Random) -> str:
        names = rng.sample(WORDS, rng.randint(2, 5))
        texts = {name: rng.random() < 0.35 for name in names[1:]}
        rows = [
            [rng.choice(WORDS) if texts.get(name) else str(rng.randrange(-90, 900)) for name in names]
            for _ in range(rng.randint(2, 7))
        ]
        return "".join(separator.join(row) + "\n" for row in [names, *rows])

    called = {
        "sum": "the sum",
        "largest": "the largest",
        "smallest": "the smallest",
        "spread": "the difference between the largest and the smallest",
    }[operation]
    named = "tabs" if separator == "\t" else f"`{separator}`"
    text = (
        "The input is a table: a header line with names of columns and at least one row, cells separated by "
        f"{named} without any quoting. For each column in which all cells are whole numbers (which may begin "
        f"with -), in the order of the columns, it prints a line: the column's name, a space, and {called} "
        "of its numbers. Other columns are passed over. A table without rows and a row with more or fewer "
        "cells than the header are wrong input."
    )
    wrong = [
        f"a{separator}b\n",
        f"a{separator}b\n1{separator}2\n3\n",
        f"a{separator}b\n1{separator}2{separator}3\n",
    ]
    return {
        "title": f"Columns of a table: {operation}",
        "text": text,
        "program": program,
        "arguments": [],
        "answer": answer,
        "draw": draw,
        "wrong": wrong,
    }


def wrap(rng: random.Random) -> dict[str, Any]:
    width, side = rng.randint(18, 40), rng.choice(["left", "right", "both"])
    program = (
        REFUSE
        + f"""
WIDTH = {width}
words = sys.stdin.read().split()
for word in words:
    if len(word) > WIDTH:
        refuse("a word is too long: " + word)
lines, line = [], []
for word in words:
    if line and len(" ".join(line + [word])) > WIDTH:
        lines.append(line)
        line = []
    line.append(word)
if line:
    lines.append(line)
for number, line in enumerate(lines):
    text = " ".join(line)
    if {side!r} == "right":
        text = text.rjust(WIDTH)
    elif {side!r} == "both" and number + 1 < len(lines) and len(line) > 1:
        gaps, spare = len(line) - 1, WIDTH - len(text)
        text = line[0]
        for index, word in enumerate(line[1:]):
            text += " " * (1 + spare // gaps + (index < spare % gaps)) + word
    print(text)
"""
    )

    def answer(text: str) -> str:
        rows: list[str] = []
        for word in text.split():
            if rows and len(rows[-1]) + 1 + len(word) <= width:
                rows[-1] += " " + word
            else:
                rows.append(word)
        if side == "right":
            rows = [" " * (width - len(row)) + row for row in rows]
        if side == "both":
            rows = [_stretch(row, width) for row in rows[:-1]] + rows[-1:]
        return "".join(row + "\n" for row in rows)

    def draw(rng: random.Random) -> str:
        words = [rng.choice([*WORDS, "a", "of", "the", "in"]) for _ in range(rng.randint(5, 40))]
        return "".join(word + rng.choice([" ", " ", "  ", "\n"]) for word in words).rstrip() + "\n"

    how = {
        "left": "Lines begin at the left and have no spaces at their ends.",
        "right": f"Each line is filled with spaces on its left to exactly {width} characters.",
        "both": f"Each line but the last is stretched to exactly {width} characters by more spaces "
        "between its words: all gaps get the same number of spaces, and where that does not "
        "come out even, the gaps further left get one more. The last "
        "line, and a line of a single word, stay as they are.",
    }[side]
    text = (
        "It reads words separated by any white space and prints them in the same order as lines of at most "
        f"{width} characters, putting as many words on each line as fit, separated by single spaces. {how} A "
        f"word of more than {width} characters is wrong input. "
    )
    wrong = ["a " + "x" * (width + 1) + "\n", "y" * (width + 20)]
    return {
        "title": f"Wrap text ({side})",
        "text": text,
        "program": program,
        "arguments": [],
        "answer": answer,
        "draw": draw,
        "wrong": wrong,
    }


def _stretch(row: str, width: int) -> str:
    """Give spaces to the gaps one by one, from left to right, until the row is as wide as it should be."""
    words = row.split(" ")
    gaps = [1] * (len(words) - 1)
    for turn in range(width - len(row) if gaps else 0):
        gaps[turn % len(gaps)] += 1
    return words[0] + "".join(" " * gap + word for gap, word in zip(gaps, words[1:], strict=True))
