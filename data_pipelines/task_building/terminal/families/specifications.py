"""The kinds of programs of family ``write_program``. Each draws its parameters and gives the fields of a
``Specification``: what a person would write, a solution, and another implementation that says what is right.

Programs end in ``refuse``, whose status the family fills in.
"""

import heapq
import random
from typing import Any

from data_pipelines.task_building.terminal.families.text import WORDS

REFUSE = """\
import sys


def refuse(reason):
    print(reason, file=sys.stderr)
    sys.exit(<<status>>)


"""


def intervals(rng: random.Random) -> dict[str, Any]:
    touching, dash = rng.random() < 0.5, rng.choice(["-", "..", ":", " to "])
    program = (
        REFUSE
        + f"""
ranges = []
for line in sys.stdin.read().splitlines():
    if not line.strip():
        continue
    first, dash, last = line.partition({dash!r})
    if not dash or not first.strip().isdigit() or not last.strip().isdigit() or int(first) > int(last):
        refuse("no range: " + line)
    ranges.append((int(first), int(last)))
merged = []
for first, last in sorted(ranges):
    if merged and first <= merged[-1][1] + {int(touching)}:
        merged[-1][1] = max(merged[-1][1], last)
    else:
        merged.append([first, last])
for first, last in merged:
    print(f"{{first}}{dash}{{last}}")
"""
    )

    def answer(text: str) -> str:
        covered = set()
        for line in text.splitlines():
            first, last = (2 * int(part) for part in line.split(dash))
            covered.update(range(first, last + 1 + touching))
        numbers, lines = sorted(covered), []
        starts = [number for number in numbers if number - 1 not in covered]
        for start in starts:
            end = start
            while end + 1 in covered:
                end += 1
            lines.append(f"{start // 2}{dash}{end // 2}\n")
        return "".join(lines)

    def draw(rng: random.Random) -> str:
        lines = []
        for _ in range(rng.randint(2, 9)):
            first = rng.randrange(60)
            lines.append(f"{first}{dash}{first + rng.randrange(9)}\n")
        return "".join(lines)

    near = (
        "Ranges that overlap or follow each other without a gap (such as 1 to 3 and 4 to 6)"
        if touching
        else "Ranges that have a number in common"
    )
    text = (
        f"Each line of the input is a range of whole numbers from 0 on, written FIRST{dash}LAST "
        f"with FIRST at most LAST, both included. {near} are joined into one. It prints the "
        "resulting ranges in "
        "the same form, one a line, in ascending order. A line that is no such range is wrong input."
    )
    wrong = [f"1{dash}2\n9{dash}3\n", f"1{dash}2\nx\n", f"4{dash}\n"]
    return {
        "title": "Join ranges",
        "text": text,
        "program": program,
        "arguments": [],
        "answer": answer,
        "draw": draw,
        "wrong": wrong,
    }


def roman(rng: random.Random) -> dict[str, Any]:
    back = rng.random() < 0.5
    program = (
        REFUSE
        + f"""
PARTS = [
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"),
    (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
]


def to_roman(number):
    text = ""
    for value, letters in PARTS:
        while number >= value:
            text, number = text + letters, number - value
    return text


TABLE = {{to_roman(number): number for number in range(1, 4000)}}
lines = []
for line in sys.stdin.read().splitlines():
    line = line.strip()
    if {back}:
        if line not in TABLE:
            refuse("no Roman numeral: " + line)
        lines.append(str(TABLE[line]))
    else:
        if not line.isdigit() or not 1 <= int(line) <= 3999:
            refuse("no number from 1 to 3999: " + line)
        lines.append(to_roman(int(line)))
print("\\n".join(lines))
"""
    )
    digits = [
        ["", *"I II III IV V VI VII VIII IX".split()],
        ["", *"X XX XXX XL L LX LXX LXXX XC".split()],
        ["", *"C CC CCC CD D DC DCC DCCC CM".split()],
        ["", "M", "MM", "MMM"],
    ]

    def numeral(number: int) -> str:
        return "".join(digits[place][number // 10**place % 10] for place in (3, 2, 1, 0))

    def answer(text: str) -> str:
        if back:
            known = {numeral(number): number for number in range(1, 4000)}
            return "".join(f"{known[line]}\n" for line in text.splitlines())
        return "".join(f"{numeral(int(line))}\n" for line in text.splitlines())

    def draw(rng: random.Random) -> str:
        numbers = [
            rng.choice([rng.randrange(1, 4000), rng.randrange(1, 50)]) for _ in range(rng.randint(1, 6))
        ]
        return "".join(f"{numeral(number) if back else number}\n" for number in numbers)

    if back:
        text = (
            "Each line of the input is a Roman numeral in capital letters, in the usual form (IV and "
            "not IIII, MCMXC and not MXM), from I to MMMCMXCIX. It prints each as a decimal number, "
            "one a line. Anything else is wrong input."
        )
        wrong = ["IIII\n", "X\nABC\n", "IC\n", "xv\n"]
    else:
        text = (
            "Each line of the input is a whole number from 1 to 3999. It prints each as a Roman "
            "numeral in capital letters, in the usual form (IV and not IIII), one a line. Anything "
            "else is wrong input."
        )
        wrong = ["0\n", "4000\n", "12\nx\n", "-3\n"]
    title = "Read Roman numerals" if back else "Write Roman numerals"
    return {
        "title": title,
        "text": text,
        "program": program,
        "arguments": [],
        "answer": answer,
        "draw": draw,
        "wrong": wrong,
    }


def calculator(rng: random.Random) -> dict[str, Any]:
    power, modulus = rng.choice(["^", "**"]), rng.choice(["%", "mod"])
    program = (
        REFUSE
        + f"""
lines = []
for line in sys.stdin.read().splitlines():
    stack = []
    for token in line.split():
        if token.lstrip("-").isdigit() and token.count("-") <= 1:
            stack.append(int(token))
            continue
        if len(stack) < 2:
            refuse("too few numbers: " + line)
        second, first = stack.pop(), stack.pop()
        if token == "+":
            stack.append(first + second)
        elif token == "-":
            stack.append(first - second)
        elif token == "*":
            stack.append(first * second)
        elif token == {power!r} and 0 <= second:
            stack.append(first**second)
        elif token == {modulus!r} and second > 0:
            stack.append(first % second)
        else:
            refuse("cannot do " + token + " in: " + line)
    if len(stack) != 1:
        refuse("not one number is left: " + line)
    lines.append(str(stack[0]))
print("\\n".join(lines))
"""
    )
    operations = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        power: pow,
        modulus: lambda a, b: a - b * (a // b),
    }

    def evaluate(tokens: list[str]) -> int:
        """From the right: the last token says what its operands, which end before it, are put together by."""
        token = tokens.pop()
        if token not in operations:
            return int(token)
        second = evaluate(tokens)
        return operations[token](evaluate(tokens), second)

    def answer(text: str) -> str:
        return "".join(f"{evaluate(line.split())}\n" for line in text.splitlines())

    def expression(rng: random.Random, depth: int) -> str:
        if depth == 0 or rng.random() < 0.2:
            return str(rng.randrange(-20, 60))
        token = rng.choice(["+", "-", "*", "+", "-", power, modulus])
        first = expression(rng, depth - 1)
        second = (
            str(rng.randrange(0, 4))
            if token == power
            else str(rng.randrange(1, 9))
            if token == modulus
            else expression(rng, depth - 1)
        )
        return f"{first} {second} {token}"

    def draw(rng: random.Random) -> str:
        return "".join(expression(rng, rng.randint(1, 3)) + "\n" for _ in range(rng.randint(1, 4)))

    text = (
        "Each line of the input is a calculation in postfix notation: whole numbers (which may "
        f"begin with -) and the operators `+`, `-`, `*`, `{power}` (power) and `{modulus}` "
        "(remainder), "
        "separated by white space; an operator stands after its two operands. The remainder is "
        "never negative. It prints the result of each line. Wrong input: an operator without "
        "two operands, a line after which not exactly one number is left, an unknown token, a "
        "negative exponent, a remainder by a number below 1."
    )
    wrong = ["1 +\n", "1 2 3 +\n", "1 2 &\n", f"2 -1 {power}\n", f"5 0 {modulus}\n"]
    return {
        "title": "A postfix calculator",
        "text": text,
        "program": program,
        "arguments": [],
        "answer": answer,
        "draw": draw,
        "wrong": wrong,
    }


def durations(rng: random.Random) -> dict[str, Any]:
    units = rng.choice(
        [
            {"d": 86400, "h": 3600, "m": 60, "s": 1},
            {"h": 3600, "m": 60, "s": 1},
            {"w": 604800, "d": 86400, "h": 3600, "m": 60},
        ]
    )
    smallest = min(units.values())
    program = (
        REFUSE
        + f"""
import re

UNITS = {units!r}
total = 0
for line in sys.stdin.read().splitlines():
    text = line.replace(" ", "")
    parts = re.findall(r"(\\d+)([{"".join(units)}])", text)
    letters = [letter for _, letter in parts]
    if not parts or "".join(number + letter for number, letter in parts) != text:
        refuse("no duration: " + line)
    if letters != [letter for letter in UNITS if letter in letters]:
        refuse("units twice or in another order: " + line)
    total += sum(int(number) * UNITS[letter] for number, letter in parts)
words = []
for letter, size in UNITS.items():
    number, total = divmod(total, size)
    if number:
        words.append(f"{{number}}{{letter}}")
print(" ".join(words) or "0{list(units)[-1]}")
"""
    )

    def answer(text: str) -> str:
        total = 0
        for line in text.splitlines():
            for word in line.split():
                total += int(word[:-1]) * units[word[-1]] // smallest
        words = []
        for letter in units:
            size = units[letter] // smallest
            if total >= size:
                words.append(f"{total // size}{letter}")
                total %= size
        return (" ".join(words) or f"0{list(units)[-1]}") + "\n"

    def draw(rng: random.Random) -> str:
        lines = []
        for _ in range(rng.randint(1, 6)):
            letters = [letter for letter in units if rng.random() < 0.6] or [list(units)[-1]]
            lines.append(
                " ".join(f"{rng.choice([0, rng.randrange(100)])}{letter}" for letter in letters) + "\n"
            )
        return "".join(lines)

    listed = ", ".join(f"`{letter}` ({size} seconds)" for letter, size in units.items())
    text = (
        "Each line of the input is a duration: one or more parts, each a whole number and "
        "directly after it a unit, with or without spaces between the parts. The units are "
        f"{listed}; within a line each comes at most once, larger "
        "before smaller. It prints the sum of all lines as one such duration: the fewest parts, "
        "largest unit first, parts that are 0 left out, one space between parts; a sum of "
        f"nothing is `0{list(units)[-1]}`. Anything else is wrong input."
    )
    largest, last = list(units)[0], list(units)[-1]
    wrong = [f"1{last} 2{largest}\n", "5\n", f"2{largest} 3{largest}\n", f"1{largest} 4y\n", "h\n"]
    return {
        "title": "Add durations",
        "text": text,
        "program": program,
        "arguments": [],
        "answer": answer,
        "draw": draw,
        "wrong": wrong,
    }


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
        f"Each line of the input is either a name or `A {arrow} B`, which says that {meaning}; "
        "names are words without white space. It prints all names that occur, each once, one a "
        "line, in an order that keeps to "
        "all rules: at each place the name that is first in byte order among those whose "
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


def runs(rng: random.Random) -> dict[str, Any]:
    shortest, mark = rng.randint(2, 4), rng.choice(["*", "#", "x"])
    back = rng.random() < 0.5
    sign = {"*": "[*]", "#": "#", "x": "X"}[mark]
    shown = "X" if mark == "x" else mark
    form = f"([a-z]|[0-9]+{sign}[a-z])*" if back else "[a-z]*"
    change = (
        f're.sub(r"([0-9]+){sign}([a-z])", lambda match: int(match[1]) * match[2], line)'
        if back
        else f're.sub(r"([a-z])\\1{{{shortest - 1},}}", lambda match: '
        f'f"{{len(match[0])}}{shown}{{match[1]}}", line)'
    )
    program = (
        REFUSE
        + f"""
import re

lines = []
for line in sys.stdin.read().splitlines():
    if not re.fullmatch(r"{form}", line):
        refuse("not the wanted form: " + line)
    lines.append({change})
print("\\n".join(lines))
"""
    )

    def pack(text: str) -> str:
        packed, place = "", 0
        while place < len(text):
            end = place
            while end < len(text) and text[end] == text[place]:
                end += 1
            length = end - place
            packed += f"{length}{shown}{text[place]}" if length >= shortest else text[place:end]
            place = end
        return packed

    def unpack(text: str) -> str:
        number, plain = "", ""
        for letter in text:
            if letter.isdigit():
                number += letter
            elif letter != shown:
                plain += letter * int(number or 1)
                number = ""
        return plain

    def answer(text: str) -> str:
        return "".join((unpack if back else pack)(line) + "\n" for line in text.splitlines())

    def draw(rng: random.Random) -> str:
        lines = [
            "".join(
                rng.choice("abcde") * rng.choice([1, 1, 2, 3, 4, 5, 12]) for _ in range(rng.randint(1, 8))
            )
            for _ in range(rng.randint(1, 4))
        ]
        return "".join((pack(line) if back else line) + "\n" for line in lines)

    packed = (
        f"each run of at least {shortest} equal letters is written as its length in decimal, "
        f"`{shown}` and the letter; shorter runs are written as they are"
    )
    if back:
        text = (
            f"Each line of the input is a packed text of lower-case letters a to z: {packed}. It "
            "prints each line unpacked. A line that is no such sequence of letters and packed runs "
            "(of any length) is wrong input."
        )
        wrong = ["ab3\n", f"4{shown}\n", "aB\n", f"{shown}a\n"]
    else:
        text = (
            "Each line of the input consists of lower-case letters a to z. It prints each line "
            f"packed: {packed}. A line with any other character is wrong input."
        )
        wrong = ["abc1\n", "aaa bbb\n", "abC\n"]
    title = "Unpack runs of letters" if back else "Pack runs of letters"
    return {
        "title": title,
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
        "The input is a table: a header line with names of columns and at least one row, cells "
        f"separated by {named} without any quoting. For each column in which all cells are whole "
        "numbers (which may begin with -), in the order of the columns, it prints a line: the "
        "column's name, "
        f"a space, and {called} of its numbers. Other columns are passed over. A table without "
        "rows and a row with more or fewer cells than the header are wrong input."
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


def base(rng: random.Random) -> dict[str, Any]:
    source, target = rng.sample([2, 3, 5, 7, 8, 12, 16, 20, 36], 2)
    program = (
        REFUSE
        + """
import string

DIGITS = string.digits + string.ascii_lowercase


def to_base(number, base):
    text = ""
    while number or not text:
        number, digit = divmod(number, base)
        text = DIGITS[digit] + text
    return text


source, target = int(sys.argv[1]), int(sys.argv[2])
lines = []
for line in sys.stdin.read().splitlines():
    word = line.strip().lower()
    if not word or any(letter not in DIGITS[:source] for letter in word):
        refuse(f"no number of base {source}: {line}")
    lines.append(to_base(int(word, source), target))
print("\\n".join(lines))
"""
    )
    alphabet = "0123456789abcdefghijklmnopqrstuvwxyz"

    def written(number: int, base: int) -> str:
        size = 1
        while base**size <= number:
            size += 1
        return "".join(alphabet[number // base**place % base] for place in range(size - 1, -1, -1))

    def answer(text: str) -> str:
        numbers = [
            sum(alphabet.index(letter) * source**place for place, letter in enumerate(reversed(line.lower())))
            for line in text.splitlines()
        ]
        return "".join(f"{written(number, target)}\n" for number in numbers)

    def draw(rng: random.Random) -> str:
        numbers = [
            rng.choice([0, rng.randrange(300), rng.randrange(10**12), rng.randrange(10**25)])
            for _ in range(rng.randint(1, 5))
        ]
        return "".join(
            f"{rng.choice([str.lower, str.upper])(written(number, source))}\n" for number in numbers
        )

    text = (
        "The two arguments are the base of the input and the base of the output (2 to 36). Each "
        "line of the input is a number from 0 on, of any size, with the digits 0 to 9 and then "
        "the letters a to z in upper or lower case. It prints each in the other base, "
        "with lower-case letters and without leading zeros, one a line. An empty line and a "
        "digit that the base does not have are wrong input."
    )
    beyond = alphabet[source] if source < 36 else "!"
    wrong = [f"1\n{beyond}\n", "1.5\n", "-1\n", "1\n\n1\n"]
    return {
        "title": "Convert between bases",
        "text": text,
        "program": program,
        "arguments": [str(source), str(target)],
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
        "It reads words separated by any white space and prints them in the same order as lines of "
        f"at most {width} characters, putting as many words on each line as fit, separated by single "
        f"spaces. {how} A word of more than {width} characters is wrong input. "
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


def matching(rng: random.Random) -> dict[str, Any]:
    pairs = dict(rng.sample([("(", ")"), ("[", "]"), ("{", "}"), ("<", ">")], rng.randint(2, 3)))
    quote = rng.choice(['"', "'"])
    program = (
        REFUSE
        + f"""
PAIRS = {pairs!r}
lines = []
for line in sys.stdin.read().splitlines():
    if line.count({quote!r}) % 2:
        refuse("a quote is left open: " + line)
    opened, deepest, quoted, verdict = [], 0, False, ""
    for place, letter in enumerate(line, 1):
        if letter == {quote!r}:
            quoted = not quoted
        elif quoted:
            continue
        elif letter in PAIRS:
            opened.append((PAIRS[letter], place))
            deepest = max(deepest, len(opened))
        elif letter in PAIRS.values():
            if not opened or opened.pop()[0] != letter:
                verdict = f"wrong {{place}}"
                break
    if not verdict:
        verdict = f"open {{opened[-1][1]}}" if opened else f"fine {{deepest}}"
    lines.append(verdict)
print("\\n".join(lines))
"""
    )

    def judge(line: str) -> str:
        masked, gone = "", 0  # the quotes themselves are as wide as a space
        for letter in line:
            if letter == quote:
                gone, masked = 1 - gone, masked + " "
            else:
                masked += " " if gone else letter
        levels: list[tuple[str, int]] = []
        depth = 0
        for place, letter in enumerate(masked, 1):
            if letter in pairs:
                levels.append((letter, place))
                depth = max(depth, len(levels))
            elif letter in pairs.values():
                if not levels or pairs[levels[-1][0]] != letter:
                    return f"wrong {place}"
                levels.pop()
        return f"open {levels[-1][1]}" if levels else f"fine {depth}"

    def answer(text: str) -> str:
        return "".join(judge(line) + "\n" for line in text.splitlines())

    def balanced(rng: random.Random, depth: int) -> str:
        if depth == 0:
            return rng.choice(["x", "", f"{quote}{rng.choice(list(pairs.values()))}{quote}"])
        opening = rng.choice(list(pairs))
        return (
            rng.choice(["", "a"])
            + opening
            + balanced(rng, depth - 1)
            + pairs[opening]
            + balanced(rng, depth - 1)
        )

    def draw(rng: random.Random) -> str:
        lines = []
        for _ in range(rng.randint(2, 6)):
            line = balanced(rng, rng.randint(1, 3))
            if rng.random() < 0.5:
                places = [
                    place
                    for place, letter in enumerate(line)
                    if letter in "()[]{}<>" and line[:place].count(quote) % 2 == 0
                ]
                place = rng.choice(places)
                line = line[:place] + line[place + 1 :]
            lines.append(line + "\n")
        return "".join(lines)

    listed = ", ".join(f"`{one}{two}`" for one, two in pairs.items())
    text = (
        f"It checks the brackets {listed} of each line of the input; all other characters mean "
        f"nothing, and what stands between two quotes `{quote}` is passed over. For each line it "
        "prints `wrong N` when the "
        "character at place N (the first is 1) is a closing bracket that does not fit the last "
        "one still open (the first such place counts), else `open N` when brackets are left open "
        "at the end, N being the place of the last one still open, else `fine N`, N being how "
        "many were open "
        f"at once at most. A line with an odd number of `{quote}` is wrong input."
    )
    opening = next(iter(pairs))
    wrong = [f"{opening}{quote}\n", f"a\n{quote}{opening}\n"]
    return {
        "title": "Check brackets",
        "text": text,
        "program": program,
        "arguments": [],
        "answer": answer,
        "draw": draw,
        "wrong": wrong,
    }


KINDS = (intervals, roman, calculator, durations, order, runs, columns, base, wrap, matching)
