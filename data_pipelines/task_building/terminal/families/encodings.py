"""Text files in several encodings with several line endings become UTF-8 with line feeds."""

import random

from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families.text import EXPECTED, WORDS, fill, name_of, phrase

CODECS = {
    "utf-8": "UTF-8",
    "utf-8-sig": "UTF-8 with a byte order mark",
    "utf-16-le": "UTF-16 with a byte order mark (little endian)",
    "utf-16-be": "UTF-16 with a byte order mark (big endian)",
}
MARKS = {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}
LEGACY = {
    "latin-1": "ISO 8859-1",
    "cp1252": "Windows-1252",
    "iso8859-15": "ISO 8859-15",
    "cp437": "code page 437 (DOS)",
}
ACCENTED = "café naïve Straße señor über garçon façade jalapeño Zürich Ærø øl été".split()
SOLUTION = """
python3 - <<'END'
import os
from pathlib import Path

report = []
for path in sorted(p for p in Path("<<root>>").rglob("*") if p.is_file() and p.suffix in <<suffixes>>):
    content = path.read_bytes()
    # A byte order mark decides; without one it is UTF-8 if it can be, else the old encoding.
    if content.startswith(b"\\xef\\xbb\\xbf"):
        name, text = "utf-8-bom", content.decode("utf-8-sig")
    elif content.startswith((b"\\xff\\xfe", b"\\xfe\\xff")):
        name, text = "utf-16", content.decode("utf-16")
    else:
        try:
            name, text = "utf-8", content.decode()
        except UnicodeDecodeError:
            name, text = "legacy", content.decode("<<legacy>>")
    text = text.replace("\\r\\n", "\\n").replace("\\r", "\\n")
    if text and not text.endswith("\\n"):
        text += "\\n"
    changed = text.encode() != content
    if changed:
        path.write_bytes(text.encode())
    report.append((os.fsencode(path.relative_to("<<root>>")), f"{name} {'changed' if changed else 'same'}"))

with open("<<out>>", "wb") as file:
    for name, line in sorted(report):
        file.write(name + b"\\t" + line.encode() + b"\\n")
END
cat <<out>>
"""
TESTS = (
    EXPECTED
    + """

def test_files():
    root = Path(EXPECTED["root"])
    for name, content in EXPECTED["files"].items():
        found = (root / name).read_bytes()
        assert found.hex() == content, f"{name} holds {found[:80]!r}"


def test_no_file_came_or_went():
    root = Path(EXPECTED["root"])
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    assert found == sorted(EXPECTED["files"]), found


def test_report():
    lines = Path(EXPECTED["report"]).read_text().splitlines()
    assert lines == EXPECTED["lines"], f"{lines} instead of {EXPECTED['lines']}"
"""
)


def convert_texts(rng: random.Random) -> TerminalDraft:
    """Byte order marks, one old encoding, three line endings, a missing last line end."""
    root, out, legacy = f"/app/{name_of(rng)}", f"/app/{name_of(rng)}.tsv", rng.choice(list(LEGACY))
    suffixes = sorted(rng.sample([".txt", ".csv", ".md", ".srt"], 2))
    files, after, lines = {}, {}, []
    for number in range(rng.randint(12, 20)):
        folder = rng.choice(["", "a/", "b/c/", "notes/"])
        suffix = rng.choice([*suffixes * 3, ".bin"])
        name = f"{folder}{rng.choice(WORDS)}{number}{suffix}"
        codec = rng.choice([*CODECS, legacy, legacy])
        rows = [
            " ".join(rng.choice([*WORDS, *ACCENTED, *ACCENTED]) for _ in range(5))
            for _ in range(rng.randint(2, 5))
        ]
        rows[0] += " " + rng.choice(ACCENTED)  # at least one letter beyond ASCII tells the encodings apart
        if codec == "cp437":
            rows = [row.replace("ø", "o").replace("Ø", "O") for row in rows]
        end, last = rng.choice(["\n", "\r\n", "\r"]), rng.random() < 0.8
        text = end.join(rows) + (end if last else "")
        try:
            content = MARKS.get(codec, b"") + text.encode(codec)
        except UnicodeEncodeError:
            content, codec = text.encode(), "utf-8"
        if codec == legacy and _is_utf8(content):
            codec = "utf-8"
        plain = (text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n") + "\n").encode()
        files[f"{root.removeprefix('/app/')}/{name}"] = content
        if suffix not in suffixes:
            after[name] = content.hex()
            continue
        kind = {"utf-8-sig": "utf-8-bom", "utf-16-le": "utf-16", "utf-16-be": "utf-16", "utf-8": "utf-8"}.get(
            codec, "legacy"
        )
        after[name] = plain.hex()
        lines.append((name, f"{name}\t{kind} {'same' if plain == content else 'changed'}"))
    listed = " and ".join(f"`{suffix}`" for suffix in suffixes)
    opening = phrase(
        rng,
        "Our text files come from many machines.",
        "Please unify our text files.",
        "These texts were collected from old and new computers.",
    )
    instruction = (
        f"{opening} Convert all files below {root} whose names end in {listed} to UTF-8 without a byte order "
        "mark and with line feeds as line ends, in place; other files stay as they are.\n\n"
        "A file that begins with a UTF-8 or UTF-16 byte order mark is in that encoding. Without a mark it "
        f"is UTF-8 if all of it is valid UTF-8, and {LEGACY[legacy]} if not. Line ends may be CR LF, CR or "
        "LF; each becomes one LF, and a file whose last line has no line end gets one.\n\n"
        f"Write {out} with a line for each of these files (changed or not), sorted by path in byte order: "
        f"the path relative to {root}, a tab, what the file was (`utf-8`, `utf-8-bom`, `utf-16` or "
        "`legacy`), a space, and `changed` if its bytes are other ones now, else `same`."
    )
    return TerminalDraft(
        title="Unify encodings and line ends",
        instruction=instruction,
        files=files,
        tests=TESTS,
        difficulty="medium",
        solution=fill(SOLUTION, root=root, out=out, legacy=legacy, suffixes=tuple(suffixes)),
        expected={"root": root, "files": after, "report": out, "lines": [line for _, line in sorted(lines)]},
    )


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
