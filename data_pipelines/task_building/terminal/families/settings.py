"""Move settings from INI files to one JSON file, with types, names and defaults by rules."""

import json
import random

from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families.text import (
    EXPECTED,
    SERVICES,
    WORDS,
    fill,
    name_of,
    phrase,
)

SOLUTION = """
# Files are read in the order of their names, so that a later one replaces values of an earlier one.
python3 - <<'END'
import configparser
import glob
import json

parser = configparser.ConfigParser(interpolation=None, strict=False)
parser.optionxform = str
for name in sorted(glob.glob("<<folder>>/*.ini")):
    parser.read(name, encoding="utf-8")
    print("read", name)


def typed(text):
    if text.lower() in ("yes", "true", "on"):
        return True
    if text.lower() in ("no", "false", "off"):
        return False
    if text.lstrip("-").isdigit():
        return int(text)
    if text.endswith(("KB", "MB")) and text[:-2].isdigit():
        return int(text[:-2]) * (1024 if text.endswith("KB") else 1024 * 1024)
    if "<<separator>>" in text:
        return [typed(part.strip()) for part in text.split("<<separator>>") if part.strip()]
    return text


result = {}
for section in parser.sections():
    place = result
    for part in section.split("."):
        place = place.setdefault(part, {})
    for key, value in parser[section].items():
        if key in <<dropped>>:
            continue
        words = key.split("_")
        place[<<rename>>] = typed(value)
with open("<<out>>", "w", encoding="utf-8") as file:
    json.dump(result, file, indent=2, sort_keys=True, ensure_ascii=False)
    file.write("\\n")
END
cat <<out>>
"""
TESTS = (
    EXPECTED
    + """

def same(found, wanted, where=""):
    assert type(found) is type(wanted), f"{where or 'all'}: {found!r} instead of {wanted!r}"
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), f"{where or 'all'}: {sorted(found)} instead of {sorted(wanted)}"
        for key in wanted:
            same(found[key], wanted[key], f"{where}/{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), f"{where}: {found!r} instead of {wanted!r}"
        for one, other in zip(found, wanted):
            same(one, other, where)
    else:
        assert found == wanted, f"{where}: {found!r} instead of {wanted!r}"


def test_settings():
    same(json.loads(Path(EXPECTED["out"]).read_text(encoding="utf-8")), EXPECTED["result"])


def test_old_files_are_as_they_were():
    for name, text in EXPECTED["files"].items():
        assert (Path("/app") / name).read_text(encoding="utf-8") == text, f"{name} was changed"
"""
)


def migrate_settings(rng: random.Random) -> TerminalDraft:
    """Sections with dots nest, values get types, later files win, keys are renamed, some are dropped."""
    folder, out = (
        f"/app/{rng.choice(['conf', 'etc', 'settings'])}/{rng.choice(SERVICES)}.d",
        f"/app/{name_of(rng)}.json",
    )
    camel, separator = rng.random() < 0.5, rng.choice([",", ";", "|"])
    if separator == ";":
        separator = ","  # a semicolon begins a comment in some dialects
    keys = [
        f"{one}_{two}"
        for one, two in zip(
            rng.sample(WORDS, 14),
            rng.sample(["size", "limit", "path", "mode", "hosts", "log_level"] * 3, 14),
            strict=True,
        )
    ]
    dropped = sorted(rng.sample(keys, 2))
    sections = rng.sample(
        ["server", "server.tls", "cache", "cache.disk", "cache.disk.paths", "auth", "queue"],
        rng.randint(3, 5),
    )
    files, result = {}, {}
    for number in range(rng.randint(2, 3)):
        lines = [f"# {rng.choice(WORDS)} settings", ""]
        for section in rng.sample(sections, rng.randint(2, len(sections))):
            lines.append(f"[{section}]")
            for key in rng.sample(keys, rng.randint(2, 5)):
                text, value = _value(rng, separator)
                lines.append(f"{key}{rng.choice([' = ', '=', ': '])}{text}")
                place = result
                for part in section.split("."):
                    place = place.setdefault(part, {})
                if key not in dropped:
                    place[_camel(key) if camel else key.replace("_", "-")] = value
            lines.append(rng.choice(["", "; end", "# end"]))
        files[f"{folder.removeprefix('/app/')}/{number}0-{rng.choice(WORDS)}.ini"] = "\n".join(lines) + "\n"
    shown = "maxDiskSize" if camel else "max-disk-size"
    opening = phrase(
        rng, "We are moving to JSON.", "Our new server reads JSON.", "Please convert old settings."
    )
    instruction = (
        f"{opening} {folder} holds settings as INI files (`#` and `;` begin comment lines; `=` or `:` stands "
        "between a key and its value, with or without spaces). Read all files ending in .ini in the order "
        "of their names; when a key of a section comes again in a later file, the later value counts.\n\n"
        f"Write {out}, one JSON object:\n\n"
        "- a section becomes an object; dots in its name nest objects (`[a.b]` is object `b` in object `a`, "
        "beside the keys of `[a]`)\n"
        f"- the words of a key are joined differently: `max_disk_size` becomes `{shown}`\n"
        f"- the keys {' and '.join(f'`{key}`' for key in dropped)} (as in the INI files) are dropped from "
        "every section\n"
        "- values: yes, true, on and no, false, off in any case become true and false; whole numbers (which "
        "may begin with -) become numbers; a whole number directly followed by KB or MB becomes the number "
        f"of bytes (1 KB is 1024 bytes, 1 MB 1024 KB); a value with `{separator}` becomes the list of its "
        "parts without white space around them, empty parts left out, each part by these same rules; "
        "everything else stays text\n"
        "- a section without remaining keys stays as an empty object\n\n"
        "Leave the INI files as they are."
    )
    rename = 'words[0] + "".join(word.title() for word in words[1:])' if camel else '"-".join(words)'
    return TerminalDraft(
        title="Move settings from INI to JSON",
        instruction=instruction,
        tests=TESTS,
        difficulty="medium",
        solution=fill(SOLUTION, folder=folder, out=out, separator=separator, dropped=dropped, rename=rename),
        files={name: text.encode() for name, text in files.items()},
        expected={"out": out, "result": json.loads(json.dumps(result)), "files": files},
    )


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(part[0].upper() + part[1:] for part in rest)


def _value(rng: random.Random, separator: str) -> tuple[str, object]:
    """As it is written, and as it is meant."""
    kind = rng.randrange(6)
    if kind == 0:
        value = rng.random() < 0.5
        word = rng.choice(["yes", "true", "on"] if value else ["no", "false", "off"])
        return rng.choice([word, word.title(), word.upper()]), value
    if kind == 1:
        number = rng.randrange(-50, 9000)
        return str(number), number
    if kind == 2:
        number, unit = rng.randrange(1, 64), rng.choice(["KB", "MB"])
        return f"{number}{unit}", number * {"KB": 2**10, "MB": 2**20}[unit]
    if kind == 3:
        parts = [_value(rng, "") for _ in range(rng.randint(2, 3))]
        parts = [part for part in parts if not isinstance(part[1], list)]
        text = f"{separator} ".join(text for text, _ in parts) + separator
        return text, [value for _, value in parts]
    text = rng.choice(
        [
            f"/var/{rng.choice(WORDS)}",
            f"{rng.choice(WORDS)} {rng.choice(WORDS)}",
            f"{rng.choice(WORDS)}.example",
            "1.5",
            "50%",
            "on-site",
            "über",
        ]
    )
    return text, text
