"""A Makefile with faults, tried on the sources of another project."""

import random

from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families import trials
from data_pipelines.task_building.terminal.families.text import WORDS, fill, name_of
from data_pipelines.task_building.terminal.families.trials import Trial

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
IN_PROJECT = """

def test_result_in_the_project():
    result = Path(EXPECTED["project"]) / EXPECTED["out"]
    assert result.read_text() == EXPECTED["result"], "the project itself is not built"
"""


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
        "- `make` (or `make all`) turns every src/NAME.part into build/NAME.up: the text of header.txt, "
        f"followed by the part in upper case; then it writes {out}, which is all of them joined in byte "
        "order of their names\n"
        f"- when a part or header.txt changes, the next `make` brings {out} up to date; when nothing has "
        f"changed, `make` leaves {out} untouched\n"
        f"- `make clean` removes the folder build and {out}, and works also when there are files called "
        "`clean` or `all`\n"
        "- sources are never changed\n\n"
        f"Repair {project}/Makefile. It will be tried with other parts and another header, in a copy of the "
        f"folder; build the result in {project} as well."
    )
    tries = _trials(project, out, {**hidden, "header.txt": "our header\n"}, part)
    return TerminalDraft(
        title="Repair a Makefile",
        instruction=instruction,
        collect=trials.collect(tries),
        tests=trials.TESTS + IN_PROJECT,
        difficulty="hard",
        packages=("make",),
        files={
            f"{project.removeprefix('/app/')}/{name}": text.encode()
            for name, text in {**shown, "header.txt": header, "Makefile": wrong}.items()
        },
        solution=fill(
            MAKE,
            project=project,
            right=right,
            out=out,
            remarks="\n".join(MAKEFILE_REMARKS[name] for name in broken),
        ),
        expected={
            "trials": trials.wanted(tries),
            "project": project,
            "out": out,
            "result": _built({**shown, "header.txt": header}),
        },
    )


def _trials(project: str, out: str, sources: dict[str, str], part: str) -> list[Trial]:
    """The delivered Makefile in folders of other sources: build, clean, changes, nothing to do, odd files."""
    copy, make = trials.run(["cp", f"{project}/Makefile", "@/Makefile"], None), trials.run(["make"], None)
    clean, result = trials.run(["make", "clean"], None), {out: _built(sources)}
    gone = trials.look({out: None, part.replace("src/", "build/").replace(".part", ".up"): None})
    changed, header = {part: "changed\n"}, {"header.txt": "other header\n"}
    steps = (
        [
            make,
            trials.look(result),
            clean,
            gone,
            trials.run(["make", "all"], None),
            trials.look({**result, **sources}),
        ],
        [make, trials.write(changed), make, trials.look({out: _built({**sources, **changed})})],
        [make, trials.write(header), make, trials.look({out: _built({**sources, **header})})],
        [make, trials.look(result), make, trials.look(result, same=True)],
        [make, trials.write({"clean": "", "all": ""}), trials.run(["make", "all"], None), clean, gone],
    )
    return [Trial([copy, *part], sources) for part in steps]


def _parts(rng: random.Random, count: int) -> dict[str, str]:
    names = rng.sample(WORDS, count)
    return {f"src/{name}.part": " ".join(rng.sample(WORDS, 3)) + "\n" for name in names}


def _built(sources: dict[str, str]) -> str:
    names = sorted(name for name in sources if name.startswith("src/"))
    return "".join(sources["header.txt"] + sources[name].upper() for name in names)
