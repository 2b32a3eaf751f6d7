"""A token that was left somewhere in a tree: found by its form and a check digit, under several disguises."""

import base64
import random
import string

from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families.text import EXPECTED, WORDS, fill, name_of, phrase

SOLUTION = """
# Look at every file as it is, and at every run of base64 and of hexadecimal digits in it after decoding.
python3 - <<'END'
import base64
import re
from pathlib import Path

FORM = re.compile(rb"(?<![A-Za-z0-9_])<<prefix>>_([A-Z2-7]{<<size>>})([0-9]{2})(?![A-Za-z0-9_])")
ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


def right(body, digits):
    total = sum(ALPHABET.index(letter) * (place + 1) for place, letter in enumerate(body))
    return total % 97 == int(digits)


def views(content):
    yield "plain", content
    for run in re.findall(rb"[A-Za-z0-9+/]{16,}={0,2}", content):
        try:
            yield "base64", base64.b64decode(run, validate=True)
        except ValueError:
            pass
    for run in re.findall(rb"(?:[0-9a-f]{2}){8,}", content):
        yield "hex", bytes.fromhex(run.decode())


found = []
for path in sorted(Path("<<root>>").rglob("*")):
    if path.is_file():
        for how, view in views(path.read_bytes()):
            for match in FORM.finditer(view):
                if right(match[1], match[2]):
                    found.append((str(path.relative_to("<<root>>")), how, match[0].decode()))
with open("<<out>>", "w") as file:
    for name, how, token in sorted(set(found)):
        file.write(f"{name}\\t{how}\\t{token}\\n")
END
cat <<out>>
"""
TESTS = (
    EXPECTED
    + """

def test_findings():
    lines = Path(EXPECTED["out"]).read_text().splitlines()
    assert lines == EXPECTED["lines"], f"{lines} instead of {EXPECTED['lines']}"


def test_tree_is_as_it_was():
    for name, content in EXPECTED["files"].items():
        assert (Path("/app") / name).read_bytes().hex() == content, f"{name} was changed"
"""
)
ALPHABET = string.ascii_uppercase + "234567"


def find_tokens(rng: random.Random) -> TerminalDraft:
    """Tokens with right check digits, plain and encoded, among many that only look alike."""
    root, out = f"/app/{name_of(rng)}", f"/app/{name_of(rng)}.tsv"
    prefix, size = rng.choice(["tok", "key", "sk", "auth"]), rng.randint(10, 16)
    files, lines = {}, []
    for number in range(rng.randint(15, 25)):
        folder = rng.choice(["", "logs/", "src/", "old/mail/", ".cache/"])
        name = f"{folder}{rng.choice(WORDS)}{number}.{rng.choice(['txt', 'log', 'env', 'py'])}"
        rows = [" ".join(rng.sample(WORDS, 6)) for _ in range(rng.randint(3, 8))]
        for _ in range(rng.choice([0, 0, 1, 2])):
            body = "".join(rng.choice(ALPHABET) for _ in range(size))
            check = sum(ALPHABET.index(letter) * (place + 1) for place, letter in enumerate(body)) % 97
            kind = rng.choice(["right", "right", "digits", "longer", "letter"])
            token = {
                "right": f"{prefix}_{body}{check:02}",
                "digits": f"{prefix}_{body}{(check + rng.randrange(1, 97)) % 97:02}",
                "longer": f"my{prefix}_{body}{check:02}",
                "letter": f"{prefix}_{body[:-1]}1{check:02}",
            }[kind]
            how = rng.choice(["plain", "base64", "hex"])
            text = f"{rng.choice(WORDS)} {token};".encode()
            shown = {"plain": text.decode(), "base64": base64.b64encode(text).decode(), "hex": text.hex()}[
                how
            ]
            rows.insert(rng.randrange(len(rows)), f"{rng.choice(WORDS)}: {shown}")
            if kind == "right":
                lines.append(f"{name}\t{how}\t{token}")
        files[f"{root.removeprefix('/app/')}/{name}"] = ("\n".join(rows) + "\n").encode()
    opening = phrase(
        rng,
        "Tokens of ours were leaked into a source tree.",
        "Before we publish a tree we must know which tokens are in it.",
        "Please look for tokens that somebody left behind.",
    )
    instruction = (
        f"{opening} Search all files below {root}, hidden ones too.\n\n"
        f"A token is `{prefix}_`, then {size} characters out of A to Z and 2 to 7, then two check digits; no "
        "letter, digit or underscore stands directly before or after it. Give the characters A to Z and 2 "
        f"to 7 the values 0 to 31 in this order; the sum over all {size} characters of value times place "
        "(the first place is 1), modulo 97, must be the two check digits. What only looks like a token is "
        "of no interest.\n\n"
        "Tokens occur as plain text, or within a text that is written in base64 (the usual alphabet with + "
        "and /) or as lower-case hexadecimal digits; each such encoded text is on one line and stands "
        "between white space.\n\n"
        f"Write {out} with a line for each token: the file's path relative to {root}, a tab, `plain`, "
        f"`base64` or `hex`, a tab, and the token; sorted in byte order. Change nothing below {root}."
    )
    return TerminalDraft(
        title="Find leaked tokens",
        instruction=instruction,
        files=files,
        tests=TESTS,
        difficulty="hard",
        solution=fill(SOLUTION, root=root, out=out, prefix=prefix, size=size),
        expected={
            "out": out,
            "lines": sorted(lines),
            "files": {name: content.hex() for name, content in files.items()},
        },
    )
