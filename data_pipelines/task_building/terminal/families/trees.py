"""Trees of files: rename a word, remove copies, set modes, repair links."""

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

RENAME = """
# 1. Files of the wanted kinds that hold the word, outside of <<excluded>>.
find <<root>> -path '<<root>>/<<excluded>>' -prune -o -type f \\( <<kinds>> \\) -print |
    LC_ALL=C sort > /tmp/candidates
xargs -d '\\n' grep -lwE '<<old>>' < /tmp/candidates > /tmp/matching || true

# 2. Count the words of each file before they are replaced, then replace whole words alone.
: > <<out>>
while IFS= read -r file; do
    count=$(grep -owE '<<old>>' "$file" | wc -l)
    printf '%s %s\\n' "$count" "${file#<<root>>/}" >> <<out>>
    sed -i -E 's/\\b<<old>>\\b/<<new>>/g' "$file"
done < /tmp/matching
cat <<out>>
"""
RENAME_TESTS = (
    EXPECTED
    + """

def test_every_file_has_the_wanted_text():
    for name, text in EXPECTED["files"].items():
        found = (Path(EXPECTED["root"]) / name).read_text()
        assert found == text, f"{name} differs from what it should be"


def test_no_file_came_or_went():
    root = Path(EXPECTED["root"])
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    assert found == sorted(EXPECTED["files"]), found


def test_report():
    lines = Path(EXPECTED["report"]).read_text().splitlines()
    assert lines == EXPECTED["lines"], lines
"""
)


def rename_word(rng: random.Random) -> TerminalDraft:
    """Replace a word in some kinds of files, not within longer words and not in a vendored folder."""
    one, two, three = rng.sample(WORDS, 3)
    old, new = f"{one}_{two}", f"{one}_{three}"
    root, out = f"/app/{rng.choice(SERVICES)}", f"/app/{name_of(rng)}.txt"
    excluded, kinds = (
        rng.choice(["vendor", "third_party", "node_modules"]),
        sorted(rng.sample(["py", "md", "cfg", "sh", "txt"], 3)),
    )
    near = [f"{old}s", f"my_{old}", f"{old}_{rng.choice(WORDS)}", f"{old}2"]
    files, expected, lines = {}, {}, []
    for number in range(rng.randint(18, 30)):
        folder = rng.choice(
            ["", "src/", "src/core/", "docs/", "tools/", f"{excluded}/lib/", f"src/{excluded}/"]
        )
        name = f"{folder}{rng.choice(WORDS)}{number}.{rng.choice([*kinds, 'py', 'log', 'json'])}"
        text = "".join(
            " ".join(
                rng.choice(
                    [rng.choice(WORDS)] * 5 + [old, f"{old}()", f"'{old}'", f"x.{old}", rng.choice(near)]
                )
                for _ in range(7)
            )
            + "\n"
            for _ in range(rng.randint(3, 14))
        )
        if rng.random() < 0.3:
            text = text.replace(old, one)
        changed, count = _replace_words(text, old, new)
        wanted = name.rpartition(".")[2] in kinds and not name.startswith(f"{excluded}/")
        files[f"{root.removeprefix('/app/')}/{name}"] = text.encode()
        expected[name] = changed if wanted else text
        if wanted and count:
            lines.append(f"{count} {name}")
    lines.sort(key=lambda line: line.split(" ", 1)[1])
    listed = ", ".join(f"`.{kind}`" for kind in kinds)
    instruction = (
        f"`{old}` is to be called `{new}` from now on. Replace it in the files below {root} whose names end "
        f"in {listed}, but only where it stands as a whole word: `{near[0]}`, `{near[1]}` and the like are "
        f"other words (letters, digits and the underscore make up a word). Do not touch {root}/{excluded} "
        "(folders of that name further down are ordinary folders), other kinds of files, or anything "
        "else.\n\n"
        f"Write {out} with a line for each changed file: how many times the word was replaced in it, a "
        f"space, and its path relative to {root}. Sort the lines by path in byte order."
    )
    solution = fill(
        RENAME,
        root=root,
        excluded=excluded,
        old=old,
        new=new,
        out=out,
        kinds=" -o ".join(f"-name '*.{kind}'" for kind in kinds),
    )
    return TerminalDraft(
        title=f"Rename {old}",
        instruction=instruction,
        files=files,
        solution=solution,
        tests=RENAME_TESTS,
        expected={"root": root, "files": expected, "report": out, "lines": lines},
        difficulty="medium",
    )


def _replace_words(text: str, old: str, new: str) -> tuple[str, int]:
    """By hand, another way than the solution's: a word ends where no word letter is."""
    parts, start, count = [], 0, 0
    while (place := text.find(old, start)) >= 0:
        before, after = text[place - 1 : place], text[place + len(old) : place + len(old) + 1]
        whole = not (before.isalnum() or before == "_" or after.isalnum() or after == "_")
        parts += [text[start:place], new if whole else old]
        count += whole
        start = place + len(old)
    return "".join(parts) + text[start:], count


COPIES = """
# 1. A line for each file: hash, size, path.
find <<root>> -type f -printf '%s\\t%P\\n' | while IFS="$(printf '\\t')" read -r size path; do
    hash=$(sha256sum < "<<root>>/$path" | cut -d ' ' -f 1)
    printf '%s\\t%s\\t%s\\n' "$hash" "$size" "$path"
done > /tmp/files.tsv

# 2. Of equal files the one that is kept comes first: <<rule>>.
awk -F '\\t' '{ printf "%s\\t%d\\t%s\\t%s\\n", $1, <<rank>>, $3, $2 }' /tmp/files.tsv |
    LC_ALL=C sort -t "$(printf '\\t')" -k1,1 -k2,2n -k3,3 > /tmp/ranked.tsv

# 3. Every further file of a hash goes, and its size is counted.
awk -F '\\t' 'seen[$1]++ { print $3 "\\t" $4 }' /tmp/ranked.tsv | LC_ALL=C sort > /tmp/copies.tsv
freed=0
: > <<out>>
while IFS="$(printf '\\t')" read -r path size; do
    rm -- "<<root>>/$path"
    printf '%s\\n' "$path" >> <<out>>
    freed=$((freed + size))
done < /tmp/copies.tsv
echo "total $freed" >> <<out>>
cat <<out>>
"""
COPIES_TESTS = (
    EXPECTED
    + """

def test_one_of_each_is_left():
    root = Path(EXPECTED["root"])
    files = [path for path in root.rglob("*") if path.is_file()]
    found = {str(path.relative_to(root)): path.read_bytes().hex() for path in files}
    assert sorted(found) == sorted(EXPECTED["kept"]), sorted(found)
    assert found == EXPECTED["kept"], "a file that is left was changed"


def test_report():
    lines = Path(EXPECTED["report"]).read_text().splitlines()
    assert lines == EXPECTED["lines"], lines
"""
)


def remove_copies(rng: random.Random) -> TerminalDraft:
    """Files of equal content, some in names with spaces, some of equal size but different."""
    root, out = f"/app/{name_of(rng)}", f"/app/{name_of(rng)}.txt"
    nearest = rng.random() < 0.5
    rule = (
        "the one with the fewest folders in its path, among those the first in byte order"
        if nearest
        else "the one whose path comes first in byte order"
    )
    contents: dict[str, bytes] = {}
    for number in range(rng.randint(8, 14)):
        size = rng.choice([40, 40, 64, rng.randrange(10, 200)])
        content = bytes(rng.randrange(256) for _ in range(size))
        for copy in range(rng.choice([1, 1, 2, 3])):
            folder = "".join(f"{rng.choice(WORDS)}/" for _ in range(rng.randrange(3)))
            separator = rng.choice(["-", " ", "_"])
            contents[
                f"{folder}{rng.choice(WORDS)}{separator}{number}{copy}.{rng.choice(['bin', 'dat', 'jpg'])}"
            ] = content
    rank = (lambda name: (name.count("/"), name)) if nearest else (lambda name: name)
    kept: dict[bytes, str] = {}
    for name in sorted(contents, key=rank):
        kept.setdefault(contents[name], name)
    gone = sorted(set(contents) - set(kept.values()))
    lines = [*gone, f"total {sum(len(contents[name]) for name in gone)}"]
    opening = phrase(
        rng,
        f"{root} has grown over the years and holds many files more than once.",
        f"Please remove the duplicate files below {root}.",
        f"The disk is full of copies: clean up {root}.",
    )
    instruction = (
        f"{opening} Two files are copies when their content is the same, whatever their names. Of each group "
        f"keep {rule} (paths relative to {root}, without a leading ./), and delete the others. Do not change "
        "the files that stay.\n\n"
        f"Write {out}: the path of each deleted file relative to {root}, one a line, sorted in byte order, "
        "and as the last line `total N`, where N is the sum of the sizes of the deleted files in bytes."
    )
    solution = fill(COPIES, root=root, out=out, rule=rule, rank='gsub(/\\//, "/", $3)' if nearest else "0")
    return TerminalDraft(
        title="Remove copies of files",
        instruction=instruction,
        solution=solution,
        tests=COPIES_TESTS,
        files={f"{root.removeprefix('/app/')}/{name}": content for name, content in contents.items()},
        expected={
            "root": root,
            "kept": {name: content.hex() for content, name in kept.items()},
            "report": out,
            "lines": lines,
        },
        difficulty="medium",
    )
