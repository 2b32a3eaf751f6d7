"""Programs on numbers: Roman numerals, a calculator, durations, bases, ranges."""

import random
from typing import Any

from data_pipelines.task_building.terminal.families.specifications.refuse import REFUSE


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
            "Each line of the input is a Roman numeral in capital letters, in the usual form (IV and not "
            "IIII, MCMXC and not MXM), from I to MMMCMXCIX. It prints each as a decimal number, one a line. "
            "Anything else is wrong input."
        )
        wrong = ["IIII\n", "X\nABC\n", "IC\n", "xv\n"]
    else:
        text = (
            "Each line of the input is a whole number from 1 to 3999. It prints each as a Roman numeral in "
            "capital letters, in the usual form (IV and not IIII), one a line. Anything else is wrong input."
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
        "Each line of the input is a calculation in postfix notation: whole numbers (which may begin with "
        f"-) and the operators `+`, `-`, `*`, `{power}` (power) and `{modulus}` (remainder), separated by "
        "white space; an operator stands after its two operands. The remainder is never negative. It prints "
        "the result of each line. Wrong input: an operator without two operands, a line after which not "
        "exactly one number is left, an unknown token, a negative exponent, a remainder by a number below 1."
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
        "Each line of the input is a duration: one or more parts, each a whole number and directly after it "
        f"a unit, with or without spaces between the parts. The units are {listed}; within a line each comes "
        "at most once, larger before smaller. It prints the sum of all lines as one such duration: the "
        "fewest parts, largest unit first, parts that are 0 left out, one space between parts; a sum of "
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
        "The two arguments are the base of the input and the base of the output (2 to 36). Each line of the "
        "input is a number from 0 on, of any size, with the digits 0 to 9 and then the letters a to z in "
        "upper or lower case. It prints each in the other base, with lower-case letters and without leading "
        "zeros, one a line. An empty line and a digit that the base does not have are wrong input."
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
        f"Each line of the input is a range of whole numbers from 0 on, written FIRST{dash}LAST with FIRST "
        f"at most LAST, both included. {near} are joined into one. It prints the resulting ranges in the "
        "same form, one a line, in ascending order. A line that is no such range is wrong input."
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
