"""A shell script that is nearly right: its faults are to be repaired, and it is tried on other inputs."""

import random
from collections import Counter

from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families import trials
from data_pipelines.task_building.terminal.families.text import WORDS, fill, name_of, phrase
from data_pipelines.task_building.terminal.families.trials import Trial

# Each script is a right text with places where a fault goes in: (name of the fault, right, wrong).
TOTALS = """\
#!/bin/bash
# Usage: NAME FILE   (lines "name amount"); prints the total of each name, largest first.
set -eu
export LC_ALL=C
awk '<<filter>> { sum[$1] += $2 } END { for (name in sum) print name, sum[name] }' <<quoted>> | sort <<sort>>
"""
TOTALS_FAULTS = {
    "sort": ("-k2,2nr -k1,1", "-k2,2r -k1,1"),
    "quoted": ('"$1"', "$1"),
    "filter": ("NF == 2", "NF >= 2"),
}
BIGGEST = """\
#!/bin/bash
# Usage: NAME FOLDER N   prints "size path" of the N largest files below FOLDER, largest first.
set -eu
export LC_ALL=C
find <<folder>> <<type>> -printf '%s %P\\n' | sort <<sort>> | head -n <<count>>
"""
BIGGEST_FAULTS = {
    "folder": ('"$1"', "$1"),
    "type": ("-type f", "-maxdepth 1 -type f"),
    "sort": ("-k1,1nr -k2", "-r"),
    "count": ('"$2"', '"$((${2} - 1))"'),
}
WORDS_SH = """\
#!/bin/bash
# Usage: NAME FILE...   prints each word of the files and how often it comes, whatever its case.
set -eu
export LC_ALL=C
cat <<files>> | tr <<case>> | grep -oE <<pattern>> | sort | uniq -c <<order>> | awk '{ print $2, $1 }'
"""
WORDS_FAULTS = {
    "files": ('-- "$@"', "-- $1"),
    "case": ("'[:upper:]' '[:lower:]'", "'[:lower:]' '[:upper:]'"),
    "pattern": ("'[a-z]+'", "'[a-z]*[a-z][a-z]'"),
    "order": ("| sort -k1,1nr -k2,2", "| sort -k1,1n -k2,2"),
}
DESCRIBED = {
    "totals": (
        "{path} FILE reads a file of lines `name amount` (amount is a whole number; lines with more or "
        "fewer than two fields are ignored) and prints `name total` for each name, the largest total first "
        "and equal totals by name in byte order.",
        TOTALS,
        TOTALS_FAULTS,
    ),
    "biggest": (
        "{path} FOLDER N prints the N largest regular files at any depth below FOLDER (all of them if "
        "there are fewer), a line each: size in bytes, a space, and the path relative to FOLDER. The "
        "largest comes first, equal sizes by path in byte order.",
        BIGGEST,
        BIGGEST_FAULTS,
    ),
    "words": (
        "{path} FILE... prints each word of all the files together, in lower case, with a space and how "
        "often it comes. A word is a run of the letters a to z, upper and lower case being the same. The "
        "most frequent word comes first, equally frequent ones in alphabetical order.",
        WORDS_SH,
        WORDS_FAULTS,
    ),
}
FIX = """
# The script as it is, on an example: wrong.
bash <<path>> <<example>> || true

# What is wrong, one by one:
<<remarks>>
cat > <<path>> <<'END'
<<right>>END
chmod 755 <<path>>

# And now.
<<path>> <<example>>
"""
REMARKS = {
    "sort": "# - sort must compare the numbers as numbers, and equal ones by name",
    "quoted": "# - a file name with a space falls apart without quotes",
    "filter": "# - lines with a third field must not count",
    "folder": "# - a folder name with a space falls apart without quotes",
    "type": "# - files further down are left out",
    "count": "# - one file too few is printed",
    "files": "# - all files are to be read, under any name",
    "case": "# - the words are made upper case, and no lower-case pattern finds them",
    "pattern": "# - words of one letter are missing",
    "order": "# - the most frequent word has to come first",
}


def fix_script(rng: random.Random) -> TerminalDraft:
    """A short script with two or three faults; what it should do is stated."""
    kind = rng.choice(list(DESCRIBED))
    description, template, faults = DESCRIBED[kind]
    path = f"/app/bin/{name_of(rng)}.sh"
    broken = rng.sample(list(faults), rng.randint(2, len(faults)))
    right = fill(template, **{name: pair[0] for name, pair in faults.items()}).replace(
        "NAME", path.rpartition("/")[2]
    )
    wrong = fill(template, **{name: pair[name in broken] for name, pair in faults.items()}).replace(
        "NAME", path.rpartition("/")[2]
    )
    tries = [_trial(path, _case(rng, kind)) for _ in range(6)]
    example = _case(rng, kind)
    arguments = [argument.replace("@", "/app/example") for argument in example["arguments"]]
    files = {f"example/{name}": text.encode() for name, text in example["files"].items()}
    files |= {path.removeprefix("/app/"): wrong.encode(), "example/expected.txt": example["output"].encode()}
    shown = " ".join(f'"{argument}"' for argument in arguments)
    opening = phrase(
        rng,
        "This script does not do what it should.",
        "Please repair a script.",
        "One of our scripts gives wrong results.",
    )
    instruction = (
        f"{opening} {description.format(path=path)}\n\n"
        "Names of files and folders may hold spaces. The script must work with bash and the usual tools of "
        "a Debian system.\n\n"
        f"For example, `{path} {shown}` should print what is in /app/example/expected.txt. Repair {path} "
        "(keep it executable); it will be tried on other inputs. Nothing else may be printed on standard "
        "output."
    )
    solution = fill(
        FIX, path=path, right=right, example=shown, remarks="\n".join(REMARKS[name] for name in broken)
    )
    return TerminalDraft(
        title=f"Repair a script ({kind})",
        instruction=instruction,
        files=files,
        setup=f"chmod 755 {path}",
        solution=solution,
        collect=trials.collect(tries),
        tests=trials.TESTS,
        expected={"trials": trials.wanted(tries)},
        difficulty="medium",
    )


def _trial(path: str, case: dict) -> Trial:
    return Trial([trials.run([path, *case["arguments"]], case["output"])], case["files"])


def _case(rng: random.Random, kind: str) -> dict:
    """Files, arguments (@ is the folder of the files) and the right output."""
    return {"totals": _totals_case, "biggest": _biggest_case, "words": _words_case}[kind](rng)


def _totals_case(rng: random.Random) -> dict:
    names, totals, lines = rng.sample(WORDS, 5), Counter(), []
    for _ in range(rng.randint(15, 40)):
        name, amount = rng.choice(names), rng.choice([rng.randrange(1, 9), rng.randrange(10, 300)])
        lines.append(f"{name} {amount}")
        totals[name] += amount
        if rng.random() < 0.2:
            lines.append(rng.choice([f"{name} {amount} voided", name, ""]))
    file = f"{rng.choice(WORDS)} {rng.choice(WORDS)}.txt"
    lines += ["aa 7", "bb 7", "aa 2", "bb 2", "cc 10", f"{names[0]} 5 voided"]
    totals.update(aa=9, bb=9, cc=10)
    output = "".join(
        f"{name} {total}\n" for name, total in sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    )
    return {"files": {file: "\n".join(lines) + "\n"}, "arguments": [f"@/{file}"], "output": output}


def _biggest_case(rng: random.Random) -> dict:
    root = f"{rng.choice(WORDS)} {rng.choice(WORDS)}"
    sizes = {"a": 9, "z/b": 100, "z/y/c": 100, "d e": 20}
    for number in range(rng.randint(4, 9)):
        folder = rng.choice(["", "x/", "x/y z/"])
        sizes[f"{folder}{rng.choice(WORDS)}{number}"] = rng.choice([5, 40, rng.randrange(1, 400)])
    count = rng.randint(3, len(sizes) + 2)
    ranked = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:count]
    return {
        "files": {f"{root}/{name}": "x" * size for name, size in sizes.items()},
        "arguments": [f"@/{root}", str(count)],
        "output": "".join(f"{size} {name}\n" for name, size in ranked),
    }


def _words_case(rng: random.Random) -> dict:
    words, counts, files = [*rng.sample(WORDS, 8), "a", "I"], Counter(), {}
    for number in range(2):
        lines = []
        for _ in range(rng.randint(4, 9)):
            chosen = [rng.choice([str.lower, str.title, str.upper])(rng.choice(words)) for _ in range(6)]
            counts.update(word.lower() for word in chosen)
            lines.append(rng.choice([" ", ", ", " 7 ", "-"]).join(chosen) + rng.choice([".", "", "!"]))
        files[f"{rng.choice(WORDS)} {number}.txt"] = "\n".join(lines) + "\n"
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    output = "".join(f"{word} {count}\n" for word, count in ranked)
    return {"files": files, "arguments": [f"@/{name}" for name in files], "output": output}
