"""Programs that are nearly right: a shell script with faults, a Makefile with faults. They are tried on other inputs."""

import random
from collections import Counter

from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families.text import RUN, WORDS, fill, name_of, phrase

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
# Usage: NAME FILE...   prints each word of the files and how often it comes, upper and lower case being the same.
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
        "{path} FILE reads a file of lines `name amount` (amount is a whole number; lines with more or fewer than two fields are ignored) and prints `name total` for each "
        "name, the largest total first and equal totals by name in byte order.",
        TOTALS, TOTALS_FAULTS,
    ),
    "biggest": (
        "{path} FOLDER N prints the N largest regular files at any depth below FOLDER (all of them if there are fewer), a line each: size in bytes, a space, and the path relative to FOLDER. The largest "
        "comes first, equal sizes by path in byte order.",
        BIGGEST, BIGGEST_FAULTS,
    ),
    "words": (
        "{path} FILE... prints each word of all the files together, in lower case, with a space and how often it comes. A word is a run of the letters a to z, upper and lower case being the same. The most frequent "
        "word comes first, equally frequent ones in alphabetical order.",
        WORDS_SH, WORDS_FAULTS,
    ),
}  # fmt: skip
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
FIX_TESTS = (
    RUN
    + """
import shutil
import tempfile


def delivered(case):
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    try:
        for name, text in case["files"].items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        arguments = [argument.replace("@", f"{folder}/") for argument in case["arguments"]]
        return run(EXPECTED["path"], *arguments, cwd=str(folder))
    finally:
        shutil.rmtree(folder)


def test_other_inputs():
    for case in EXPECTED["cases"]:
        status, output, complaints = delivered(case)
        assert status == 0, f"{case['arguments']}: status {status}, {complaints}"
        assert output == case["output"], f"{case['arguments']}: {output!r} instead of {case['output']!r}"
"""
)


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
    cases = [_case(rng, kind) for _ in range(6)]
    example = _case(rng, kind)
    arguments = [argument.replace("@", "/app/example/") for argument in example["arguments"]]
    files = {f"example/{name}": text.encode() for name, text in example["files"].items()}
    files |= {path.removeprefix("/app/"): wrong.encode(), "example/expected.txt": example["output"].encode()}
    shown = " ".join(f'"{argument}"' for argument in arguments)
    instruction = (
        f"{phrase(rng, 'This script does not do what it should.', 'Please repair a script.', 'One of our scripts gives wrong results.')} {description.format(path=path)}\n\n"
        f"Names of files and folders may hold spaces. The script must work with bash and the usual tools of a Debian system.\n\nFor example, `{path} {shown}` should print what is in "
        f"/app/example/expected.txt. Repair {path} (keep it executable); it will be tried on other inputs. Nothing else may be printed on standard output."
    )
    solution = fill(
        FIX, path=path, right=right, example=shown, remarks="\n".join(REMARKS[name] for name in broken)
    )
    return TerminalDraft(
        title=f"Repair a script ({kind})", instruction=instruction, files=files, setup=f"chmod 755 {path}", solution=solution,
        tests=FIX_TESTS, expected={"path": path, "cases": cases}, difficulty="medium",
    )  # fmt: skip


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
    return {"files": {file: "\n".join(lines) + "\n"}, "arguments": [f"@{file}"], "output": output}


def _biggest_case(rng: random.Random) -> dict:
    root = f"{rng.choice(WORDS)} {rng.choice(WORDS)}"
    sizes = {"a": 9, "z/b": 100, "z/y/c": 100, "d e": 20}
    for number in range(rng.randint(4, 9)):
        folder = rng.choice(["", "x/", "x/y z/"])
        sizes[f"{folder}{rng.choice(WORDS)}{number}"] = rng.choice([5, 40, rng.randrange(1, 400)])
    count = rng.randint(3, len(sizes) + 2)
    ranked = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:count]
    return {
        "files": {f"{root}/{name}": "x" * size for name, size in sizes.items()}, "arguments": [f"@{root}", str(count)],
        "output": "".join(f"{size} {name}\n" for name, size in ranked),
    }  # fmt: skip


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
    return {"files": files, "arguments": [f"@{name}" for name in files], "output": output}


MAKEFILE = """\
# <<out>>: all parts of src/, upper case, numbered, joined
PARTS := $(sort $(wildcard src/*.part))
BUILT := <<built>>

<<phony>>all: <<out>>

<<out>>: <<depends>>
<<tab>><<join>>

build/%.up: src/%.part <<header>>
	@mkdir -p build
	<<convert>>

clean:
	rm -rf build <<out>>
"""
MAKEFILE_FAULTS = {
    "built": ("$(PARTS:src/%.part=build/%.up)", "$(PARTS:src/%.part=build/%.upper)"),
    "phony": (".PHONY: all clean\n\n", ""),
    "depends": ("$(BUILT)", "| $(BUILT)"),
    "tab": ("\t", "    "),
    "join": ("cat $(BUILT) > $@", "cat $(BUILT) >> $@"),
    "header": ("header.txt", ""),
    "convert": (
        "{ cat header.txt; tr '[:lower:]' '[:upper:]' < $<; } > $@",
        "{ cat header.txt; tr '[:lower:]' '[:upper:]' < $@; } > $<",
    ),
}
MAKEFILE_REMARKS = {
    "built": "# - the names of the built parts do not fit the rule that makes them",
    "phony": "# - a file called clean or all keeps the target of that name from running",
    "depends": "# - the parts are order-only prerequisites: changing one does not build the result again",
    "tab": "# - a command begins with spaces instead of a tab",
    "join": "# - the result grows with every build",
    "header": "# - a part does not depend on the header that it holds",
    "convert": "# - source and target of the conversion are the wrong way round",
}
MAKE = """
# What is wrong, one by one:
<<remarks>>
cd <<project>>
cat > Makefile <<'END'
<<right>>END
make
make
cat <<out>>
"""
MAKE_TESTS = (
    RUN
    + """
import os
import shutil
import tempfile
import time


class Copy:
    \"\"\"A project folder with the delivered Makefile and sources of our own, which nobody may write to.\"\"\"

    def __enter__(self):
        self.folder = Path(tempfile.mkdtemp(dir="/tmp"))
        shutil.copy(f"{EXPECTED['project']}/Makefile", self.folder / "Makefile")
        (self.folder / "src").mkdir()
        for name, text in EXPECTED["sources"].items():
            (self.folder / name).write_text(text)
        for path in [self.folder, *self.folder.rglob("*")]:
            path.chmod(0o777 if path.is_dir() else 0o666)
        return self

    def __exit__(self, *error):
        shutil.rmtree(self.folder)

    def make(self, *arguments):
        status, output, complaints = run("make", *arguments, cwd=str(self.folder))
        assert status == 0, f"make {arguments}: {output}{complaints}"

    def touch(self, name, text):
        \"\"\"Write a file and date it a minute ahead of what was built.\"\"\"
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o666)
        os.utime(path, (time.time() + 60, time.time() + 60))

    def result(self):
        return (self.folder / EXPECTED["out"]).read_text()


def test_result():
    with Copy() as project:
        project.make()
        assert project.result() == EXPECTED["result"], project.result()
        project.make("clean")
        assert not (project.folder / EXPECTED["out"]).exists() and not (project.folder / "build").exists()
        project.make("all")
        assert project.result() == EXPECTED["result"]


def test_a_changed_part_builds_it_again():
    with Copy() as project:
        project.make()
        project.touch(EXPECTED["part"], "changed\\n")
        project.make()
        assert project.result() == EXPECTED["result_after_part"], project.result()


def test_a_changed_header_builds_it_again():
    with Copy() as project:
        project.make()
        project.touch("header.txt", "other header\\n")
        project.make()
        assert project.result() == EXPECTED["result_after_header"], project.result()


def test_files_called_like_targets():
    with Copy() as project:
        project.make()
        for name in ("clean", "all"):
            (project.folder / name).write_text("")
        project.make("clean")
        assert not (project.folder / EXPECTED["out"]).exists()


def test_nothing_to_do_the_second_time():
    with Copy() as project:
        project.make()
        before = (project.folder / EXPECTED["out"]).stat().st_mtime_ns
        project.make()
        assert (project.folder / EXPECTED["out"]).stat().st_mtime_ns == before
"""
)


def fix_makefile(rng: random.Random) -> TerminalDraft:
    """A Makefile with several of seven faults, tried on sources of another project."""
    project, out = f"/app/{name_of(rng)}", f"{rng.choice(WORDS)}.{rng.choice(['txt', 'out', 'list'])}"
    broken = rng.sample(list(MAKEFILE_FAULTS), rng.randint(3, 5))
    right = fill(MAKEFILE, out=out, **{name: pair[0] for name, pair in MAKEFILE_FAULTS.items()})
    wrong = fill(MAKEFILE, out=out, **{name: pair[name in broken] for name, pair in MAKEFILE_FAULTS.items()})
    wrong, right = wrong.replace("<<out>>", out), right.replace("<<out>>", out)
    shown, hidden = _parts(rng, rng.randint(2, 4)), _parts(rng, rng.randint(3, 5))
    part = rng.choice(sorted(hidden))
    header = f"== {rng.choice(WORDS)} ==\n"
    instruction = (
        f"The Makefile in {project} does not work. It should do this:\n\n"
        f"- `make` (or `make all`) turns every src/NAME.part into build/NAME.up: the text of header.txt, followed by the part in upper case; then it writes {out}, which is all of them joined in "
        "byte order of their names\n"
        f"- when a part or header.txt changes, the next `make` brings {out} up to date; when nothing has changed, `make` leaves {out} untouched\n"
        f"- `make clean` removes the folder build and {out}, and works also when there are files called `clean` or `all`\n"
        "- sources are never changed\n\n"
        f"Repair {project}/Makefile. It will be tried with other parts and another header, in a copy of the folder; build the result in {project} as well."
    )
    # The project that is built is ours too: an untouched Makefile leaves no result there.
    tests = (
        MAKE_TESTS
        + """

def test_result_in_the_project():
    assert (Path(EXPECTED["project"]) / EXPECTED["out"]).read_text() == EXPECTED["result_in_project"]
"""
    )
    return TerminalDraft(
        title="Repair a Makefile", instruction=instruction, tests=tests, difficulty="hard", packages=("make",),
        files={f"{project.removeprefix('/app/')}/{name}": text.encode() for name, text in {**shown, "header.txt": header, "Makefile": wrong}.items()},
        solution=fill(MAKE, project=project, right=right, out=out, remarks="\n".join(MAKEFILE_REMARKS[name] for name in broken)),
        expected={
            "project": project, "out": out, "sources": {**hidden, "header.txt": "our header\n"}, "part": part,
            "result": _built(hidden, "our header\n"), "result_after_part": _built({**hidden, part: "changed\n"}, "our header\n"),
            "result_after_header": _built(hidden, "other header\n"), "result_in_project": _built(shown, header),
        },
    )  # fmt: skip


def _parts(rng: random.Random, count: int) -> dict[str, str]:
    names = rng.sample(WORDS, count)
    return {f"src/{name}.part": " ".join(rng.sample(WORDS, 3)) + "\n" for name in names}


def _built(sources: dict[str, str], header: str) -> str:
    return "".join(header + sources[name].upper() for name in sorted(sources))
