"""Permissions of files and targets of symbolic links."""

import random

from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families.text import EXPECTED, SERVICES, WORDS, fill, name_of

MODES = """
# 1. Folders and files have the usual modes first.
find <<root>> -type d -exec chmod <<folders>> {} +
find <<root>> -type f -exec chmod <<files>> {} +

# 2. Programs are told by their first line, whatever their names.
find <<root>> -type f | while IFS= read -r file; do
    if [ "$(head -c 2 "$file" | tr -d '\\0')" = '#!' ]; then
        chmod <<programs>> "$file"
    fi
done

# 3. Secrets last, so that nothing opens them again.
find <<root>> -type f \\( -name '*.<<secret>>' -o -path '*/<<private>>/*' \\) -exec chmod <<secrets>> {} +

# 4. The list of what is there now.
(cd <<root>> && find . -mindepth 1 -printf '%m %P\\n' | LC_ALL=C sort -k2) > <<out>>
cat <<out>>
"""
MODES_TESTS = (
    EXPECTED
    + """

def test_modes():
    root = Path(EXPECTED["root"])
    for name, mode in EXPECTED["modes"].items():
        found = format((root / name).stat().st_mode & 0o7777, "o")
        assert found == mode, f"{name} has mode {found} instead of {mode}"


def test_contents_are_as_they_were():
    for name, text in EXPECTED["texts"].items():
        assert (Path(EXPECTED["root"]) / name).read_text() == text, f"{name} was changed"


def test_report():
    lines = Path(EXPECTED["report"]).read_text().splitlines()
    wanted = [f"{EXPECTED['modes'][name]} {name}" for name in sorted(EXPECTED["modes"])]
    assert lines == wanted, lines
"""
)


def set_modes(rng: random.Random) -> TerminalDraft:
    """Modes by rules: folders, files, programs by their first line, secrets by name and folder."""
    root, out = f"/app/{rng.choice(SERVICES)}", f"/app/{name_of(rng)}.txt"
    folders, files, programs, secrets = rng.choice(
        [
            ("755", "644", "755", "600"),
            ("750", "640", "750", "400"),
            ("775", "664", "775", "600"),
            ("711", "604", "705", "440"),
        ]
    )
    secret, private = rng.choice(["key", "pem", "token"]), rng.choice(["private", "secrets", "credentials"])
    texts, modes, setup = {}, {}, []
    for number in range(rng.randint(14, 24)):
        folder = rng.choice(["", "bin/", "etc/", "lib/plugins/", f"etc/{private}/", f"{private}/"])
        program = rng.random() < 0.35
        name = f"{folder}{rng.choice(WORDS)}{number}{rng.choice(['', '.sh', '.conf', '.py', f'.{secret}'])}"
        first = (
            rng.choice(["#!/bin/sh\n", "#!/usr/bin/env python3\n"])
            if program
            else rng.choice(["# settings\n", "", "!# odd\n"])
        )
        texts[name] = first + " ".join(rng.sample(WORDS, 4)) + "\n"
        hidden = name.endswith(f".{secret}") or f"{private}/" in name
        modes[name] = secrets if hidden else programs if program else files
        for depth in range(1, name.count("/") + 1):
            modes["/".join(name.split("/")[:depth])] = folders
        setup.append(f"chmod {rng.choice(['777', '600', '444', '755', '666'])} {root}/{name}")
    instruction = (
        f"The modes of the files below {root} are all over the place. Please set them by these rules, a later one taking "
        "precedence over an earlier one:\n\n"
        f"1. folders: {folders}\n"
        f"2. files: {files}\n"
        f"3. programs, which are the files whose first two bytes are `#!` whatever their names: {programs}\n"
        f"4. secrets, which are the files whose names end in `.{secret}` and all files in or below a folder called "
        f"`{private}`: {secrets}\n\n"
        f"{root} itself gets the mode of a folder too. Do not change what is in the files. Then write {out} with a line "
        f"for everything below {root} (files and folders, without {root} itself): the octal mode, a space, and the path relative to "
        f"{root}, sorted by path in byte order."
    )
    solution = fill(
        MODES, root=root, out=out, folders=folders, files=files, programs=programs, secrets=secrets, secret=secret,
        private=private,
    )  # fmt: skip
    return TerminalDraft(
        title="Set modes by rules", instruction=instruction, solution=solution, tests=MODES_TESTS,
        files={f"{root.removeprefix('/app/')}/{name}": text.encode() for name, text in texts.items()},
        setup="\n".join(setup), expected={"root": root, "modes": modes, "texts": texts, "report": out}, difficulty="easy",
    )  # fmt: skip


LINKS = """
# 1. Links whose target is gone.
find <<root>> -xtype l | LC_ALL=C sort > /tmp/broken

# 2. A file of the target's name may still be somewhere in the store; it must be the only one.
: > <<out>>
while IFS= read -r link; do
    name=$(basename "$(readlink "$link")")
    mapfile -t found < <(find <<root>>/<<store>> -type f -name "$name")
    if [ "${#found[@]}" -eq 1 ]; then
        ln -sfnr "${found[0]}" "$link"
        echo "repaired ${link#<<root>>/}" >> <<out>>
    else
        rm -- "$link"
        echo "removed ${link#<<root>>/}" >> <<out>>
    fi
done < /tmp/broken
cat <<out>>
"""
LINKS_TESTS = (
    EXPECTED
    + """
import os


def test_links():
    root = Path(EXPECTED["root"])
    found = {}
    for path in root.rglob("*"):
        if path.is_symlink():
            found[str(path.relative_to(root))] = os.path.relpath(os.path.realpath(path), root)
    assert found == EXPECTED["links"], f"{found} instead of {EXPECTED['links']}"


def test_repaired_links_are_relative():
    for name in EXPECTED["repaired"]:
        target = os.readlink(Path(EXPECTED["root"]) / name)
        assert not target.startswith("/"), f"{name} points to {target}"


def test_report():
    lines = Path(EXPECTED["report"]).read_text().splitlines()
    assert lines == EXPECTED["lines"], lines
"""
)


def repair_links(rng: random.Random) -> TerminalDraft:
    """Links to files that were moved are set anew where the file is found once, and removed otherwise."""
    root, out, store = (
        f"/app/{rng.choice(SERVICES)}",
        f"/app/{name_of(rng)}.txt",
        rng.choice(["store", "media", "objects"]),
    )
    files, setup, links, lines, repaired = {}, [], {}, [], []
    names = [f"{word}.dat" for word in rng.sample(WORDS, 16)]
    for number, name in enumerate(names):
        copies = rng.choices([0, 1, 2], [2, 5, 1])[0] if number > 2 else number
        places = [f"{store}/{folder}/{name}" for folder in rng.sample(["a", "b", "b/c", "d", "old"], copies)]
        files.update({f"{root.removeprefix('/app/')}/{place}": f"{place}\n".encode() for place in places})
        folder = rng.choice(["current", "views", "views/today", "latest"])
        link, broken = f"{folder}/{name.removesuffix('.dat')}", rng.random() < 0.7 or copies == 0
        target = (
            f"{rng.choice(['/app/moved', '../gone', 'gone/deep'])}/{name}"
            if broken
            else f"{root}/{places[0]}"
        )
        setup += [f"mkdir -p {root}/{folder}", f"ln -s {target} {root}/{link}"]
        if not broken:
            links[link] = places[0]
        elif copies == 1:
            links[link] = places[0]
            repaired.append(link)
            lines.append(f"repaired {link}")
        else:
            lines.append(f"removed {link}")
    lines.sort(key=lambda line: line.split(" ", 1)[1])
    instruction = (
        f"Files below {root}/{store} were moved around, and many symbolic links below {root} now point to nothing. For each such "
        f"dangling link, take the file name of its target (the part after the last slash) and look for regular files of exactly that name "
        f"anywhere below {root}/{store}:\n\n"
        "- there is exactly one: make the link point to it, with a relative target\n"
        "- there is none, or more than one: remove the link\n\n"
        "Links that work stay as they are, and no file is moved, made or deleted.\n\n"
        f"Write {out} with a line for each link that was dangling: `repaired PATH` or `removed PATH`, with the link's path "
        f"relative to {root}, sorted by PATH in byte order."
    )
    return TerminalDraft(
        title="Repair dangling links", instruction=instruction, files=files, setup="\n".join(setup),
        solution=fill(LINKS, root=root, store=store, out=out), tests=LINKS_TESTS, difficulty="medium",
        expected={"root": root, "links": links, "repaired": repaired, "report": out, "lines": lines},
    )  # fmt: skip
