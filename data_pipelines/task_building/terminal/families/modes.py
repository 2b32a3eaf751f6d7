"""A script that sets permissions of files; repair of symbolic links."""

import random

from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families import trials
from data_pipelines.task_building.terminal.families.text import (
    EXPECTED,
    SERVICES,
    WORDS,
    fill,
    name_of,
    phrase,
)
from data_pipelines.task_building.terminal.families.trials import Trial

MODES = """
# The script sets the modes rule by rule, so that a later rule has the last word.
mkdir -p "$(dirname <<path>>)"
cat > <<path>> <<'END'
#!/bin/bash
set -euo pipefail
cd "$1"

# 1. Folders and files have the usual modes first.
find . -type d -exec chmod <<folders>> {} +
find . -type f -exec chmod <<files>> {} +

# 2. Programs are told by their first bytes, whatever their names.
find . -type f -print0 | while IFS= read -r -d '' file; do
    if [ "$(head -c 2 "$file" | tr -d '\\0')" = '#!' ]; then
        chmod <<programs>> "$file"
    fi
done

# 3. Secrets last, so that nothing opens them again.
find . -type f \\( -name '*.<<secret>>' -o -path '*/<<private>>/*' \\) -exec chmod <<secrets>> {} +

# 4. The list of what is there now.
find . -mindepth 1 -printf '%m %P\\n' | LC_ALL=C sort -k2
END
chmod 755 <<path>>

# On the example.
<<path>> /app/example
"""
SCHEMES = (
    ("755", "644", "755", "600"),
    ("750", "640", "750", "400"),
    ("775", "664", "775", "600"),
    ("711", "604", "705", "440"),
)


def set_modes(rng: random.Random) -> TerminalDraft:
    """A script that sets modes by rules: folders, files, programs by their first bytes, secrets by name."""
    path, scheme = f"/app/bin/{name_of(rng)}.sh", rng.choice(SCHEMES)
    folders, files, programs, secrets = scheme
    secret, private = rng.choice(["key", "pem", "token"]), rng.choice(["private", "secrets", "credentials"])
    example, *trees = [_tree(rng, scheme, secret, private) for _ in range(4)]
    tries = [_trial(path, tree, folders) for tree in trees]
    opening = phrase(
        rng,
        "Modes of files on our servers are all over the place.",
        "Please write a script that puts modes of files right.",
        "We want one script that sets the modes of a whole folder.",
    )
    instruction = (
        f"{opening} Write {path}, executable, called as `{path} FOLDER`. It sets the modes of FOLDER itself "
        "and of everything below it by these rules, a later one taking precedence over an earlier one:\n\n"
        f"1. folders: {folders}\n"
        f"2. regular files: {files}\n"
        f"3. programs, which are the files whose first two bytes are `#!` whatever their names: {programs}\n"
        f"4. secrets, which are the files whose names end in `.{secret}` and all files in or below a folder "
        f"called `{private}`: {secrets}\n\n"
        "Then it prints a line for everything below FOLDER (files and folders, without FOLDER itself): the "
        "octal mode, a space, and the path relative to FOLDER without a leading ./, sorted by path in byte "
        "order; nothing else on standard output. It changes nothing of what is in the files, and a second "
        "run changes nothing. Names may hold spaces.\n\n"
        "There is a folder /app/example to try it on. It will be tried on other folders, which belong to "
        f"whoever runs it; FOLDER itself is never called `{private}`."
    )
    return TerminalDraft(
        title="A script that sets modes by rules",
        instruction=instruction,
        solution=fill(
            MODES,
            path=path,
            folders=folders,
            files=files,
            programs=programs,
            secrets=secrets,
            secret=secret,
            private=private,
        ),
        collect=trials.collect(tries),
        tests=trials.TESTS,
        files={f"example/{name}": text.encode() for name, (text, _) in example["files"].items()},
        expected={"trials": trials.wanted(tries)},
        difficulty="medium",
    )


def _trial(path: str, tree: dict, folders: str) -> Trial:
    """A second run changes nothing."""
    modes = {**tree["modes"], ".": folders}
    texts = {name: text for name, (text, _) in tree["files"].items()}
    output = "".join(f"{tree['modes'][name]} {name}\n" for name in sorted(tree["modes"]))
    steps = [trials.run([path, "@"], output), trials.look(modes=modes)] * 2
    return Trial([*steps, trials.look(texts=texts)], tree["files"], tree["folder"])


def _tree(rng: random.Random, scheme: tuple[str, ...], secret: str, private: str) -> dict:
    """Texts and modes of files at the start, and the modes that are right."""
    folders, files, programs, secrets = scheme
    texts, modes = {}, {}
    for number in range(rng.randint(8, 14)):
        places = ["", "bin/", "etc/", "lib/my plugins/", f"etc/{private}/", f"{private}/deep/"]
        ending = rng.choice(["", ".sh", ".conf", ".py", f".{secret}", f".{secret}.txt"])
        name = f"{rng.choice(places)}{rng.choice(WORDS)}{rng.choice([' ', '-', ''])}{number}{ending}"
        program = rng.random() < 0.35
        first = rng.choice(["#!/bin/sh\n", "#!python3"] if program else ["# settings\n", "", "!# odd\n"])
        texts[name] = (
            first + " ".join(rng.sample(WORDS, 4)) + "\n",
            rng.choice(["777", "600", "444", "755"]),
        )
        hidden = name.endswith(f".{secret}") or f"{private}/" in name
        modes[name] = secrets if hidden else programs if program else files
        for depth in range(1, name.count("/") + 1):
            modes["/".join(name.split("/")[:depth])] = folders
    return {"folder": f"{rng.choice(SERVICES)} {rng.choice(WORDS)}", "files": texts, "modes": modes}


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
        f"Files below {root}/{store} were moved around, and many symbolic links below {root} now point to "
        "nothing. For each such dangling link, take the file name of its target (the part after the last "
        f"slash) and look for regular files of exactly that name anywhere below {root}/{store}:\n\n"
        "- there is exactly one: make the link point to it, with a relative target\n"
        "- there is none, or more than one: remove the link\n\n"
        "Links that work stay as they are, and no file is moved, made or deleted.\n\n"
        f"Write {out} with a line for each link that was dangling: `repaired PATH` or `removed PATH`, with "
        f"the link's path relative to {root}, sorted by PATH in byte order."
    )
    return TerminalDraft(
        title="Repair dangling links",
        instruction=instruction,
        files=files,
        setup="\n".join(setup),
        solution=fill(LINKS, root=root, store=store, out=out),
        tests=LINKS_TESTS,
        difficulty="medium",
        expected={"root": root, "links": links, "repaired": repaired, "report": out, "lines": lines},
    )
