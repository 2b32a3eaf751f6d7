"""Records in a binary format that is described in words."""

import random
import struct
import zlib

from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families.text import EXPECTED, WORDS, fill, name_of, phrase

FIELDS = {
    "count": ("H", "unsigned 16-bit integer", lambda rng: rng.randrange(2**16)),
    "serial": ("I", "unsigned 32-bit integer", lambda rng: rng.randrange(2**32)),
    "offset": ("h", "signed 16-bit integer", lambda rng: rng.randrange(-(2**15), 2**15)),
    "flags": ("B", "unsigned 8-bit integer", lambda rng: rng.randrange(256)),
    "position": ("q", "signed 64-bit integer", lambda rng: rng.randrange(-(2**40), 2**40)),
}
SOLUTION = """
python3 - <<'END'
import struct
import zlib

ORDER = "<<order>>"
content = open("<<source>>", "rb").read()
assert content[:4] == b"<<magic>>", content[:4]
(count,) = struct.unpack_from(ORDER + "I", content, 4)
place, lines, broken = 8, ["<<header>>"], 0
for _ in range(count):
    # A record: length of its body, the body, and a checksum of the body.
    (length,) = struct.unpack_from(ORDER + "H", content, place)
    body = content[place + 2 : place + 2 + length]
    (checksum,) = struct.unpack_from(ORDER + "I", content, place + 2 + length)
    place += 2 + length + 4
    if zlib.crc32(body) != checksum:
        broken += 1
        continue
    numbers = struct.unpack_from(ORDER + "<<codes>>", body)
    name = body[struct.calcsize(ORDER + "<<codes>>") :].decode()
    lines.append(",".join([name, *map(str, numbers)]))
lines.append(f"broken,{broken}")
with open("<<out>>", "w") as file:
    file.write("\\n".join(lines) + "\\n")
END
head -n 5 <<out>>
"""
TESTS = (
    EXPECTED
    + """

def test_table():
    lines = Path(EXPECTED["out"]).read_text().splitlines()
    assert len(lines) == len(EXPECTED["lines"]), f"{len(lines)} lines instead of {len(EXPECTED['lines'])}"
    for found, wanted in zip(lines, EXPECTED["lines"]):
        assert found == wanted, f"{found} instead of {wanted}"
"""
)


def binary_records(rng: random.Random) -> TerminalDraft:
    """A header, records of varying length with checksums, some of them damaged."""
    source, out = f"/app/{name_of(rng)}.{rng.choice(['bin', 'rec', 'dat'])}", f"/app/{name_of(rng)}.csv"
    order, magic = rng.choice("<>"), "".join(rng.choice("ABCDEFGHKMPRSTXZ") for _ in range(4))
    names = rng.sample(list(FIELDS), rng.randint(2, 4))
    codes = "".join(FIELDS[name][0] for name in names)
    records, lines, broken = [], [",".join(["name", *names])], 0
    for _ in range(rng.randint(30, 70)):
        numbers = [FIELDS[name][2](rng) for name in names]
        label = "-".join(rng.choice([*WORDS, "größe", "año"]) for _ in range(rng.randint(1, 3)))
        body = (
            b"".join(
                number.to_bytes(
                    struct.calcsize("=" + code), "little" if order == "<" else "big", signed=code.islower()
                )
                for number, code in zip(numbers, codes, strict=True)
            )
            + label.encode()
        )
        checksum = zlib.crc32(body)
        if rng.random() < 0.12:
            checksum ^= 1 << rng.randrange(32)
            broken += 1
        else:
            lines.append(",".join([label, *map(str, numbers)]))
        records.append(struct.pack(f"{order}H", len(body)) + body + struct.pack(f"{order}I", checksum))
    content = magic.encode() + struct.pack(f"{order}I", len(records)) + b"".join(records)
    lines.append(f"broken,{broken}")
    listed = "\n".join(f"  - {name}: {FIELDS[name][1]}" for name in names)
    opening = phrase(
        rng,
        "A measuring device writes files in a format of its own.",
        "We lost the program that reads this file.",
        "Please turn a binary file into a table.",
    )
    instruction = (
        f"{opening} {source} is such a file. All numbers in it are {'little' if order == '<' else 'big'} "
        "endian, and nothing is padded:\n\n"
        f"- 4 bytes: the letters {magic}\n"
        "- unsigned 32-bit integer: how many records follow\n"
        "- each record:\n"
        "  - unsigned 16-bit integer: the length of its body in bytes\n"
        "  - the body\n"
        "  - unsigned 32-bit integer: the CRC-32 of the body (as zlib and gzip compute it)\n\n"
        "The body of a record consists of, in this order:\n\n"
        f"{listed}\n"
        "  - the rest: a name in UTF-8\n\n"
        f"Write {out} (UTF-8) with the header `{','.join(['name', *names])}`, then a line for each record "
        "whose checksum is right, in the order of the file, numbers in decimal, and as the last line "
        "`broken,N`, where N is how many records have a wrong checksum."
    )
    return TerminalDraft(
        title="Read binary records",
        instruction=instruction,
        tests=TESTS,
        difficulty="medium",
        solution=fill(
            SOLUTION, source=source, out=out, order=order, magic=magic, codes=codes, header=lines[0]
        ),
        files={source.removeprefix("/app/"): content},
        expected={"out": out, "lines": lines},
    )
