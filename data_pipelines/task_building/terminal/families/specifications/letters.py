"""Programs on single letters: runs that are packed, brackets that match."""

import random
from typing import Any

from data_pipelines.task_building.terminal.families.specifications.refuse import REFUSE


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
        f"each run of at least {shortest} equal letters is written as its length in decimal, `{shown}` and "
        "the letter; shorter runs are written as they are"
    )
    if back:
        text = (
            f"Each line of the input is a packed text of lower-case letters a to z: {packed}. It prints each "
            "line unpacked. A line that is no such sequence of letters and packed runs (of any length) is "
            "wrong input."
        )
        wrong = ["ab3\n", f"4{shown}\n", "aB\n", f"{shown}a\n"]
    else:
        text = (
            "Each line of the input consists of lower-case letters a to z. It prints each line packed: "
            f"{packed}. A line with any other character is wrong input."
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
        f"It checks the brackets {listed} of each line of the input; all other characters mean nothing, and "
        f"what stands between two quotes `{quote}` is passed over. For each line it prints `wrong N` when "
        "the character at place N (the first is 1) is a closing bracket that does not fit the last one "
        "still open (the first such place counts), else `open N` when brackets are left open at the end, N "
        "being the place of the last one still open, else `fine N`, N being how many were open at once at "
        f"most. A line with an odd number of `{quote}` is wrong input."
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
