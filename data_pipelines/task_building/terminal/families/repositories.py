"""Git: which commit broke a value, bring back a deleted file, merge two branches."""

import random

from data_pipelines.task_building.terminal.draft import TerminalDraft
from data_pipelines.task_building.terminal.families.history import History, setup
from data_pipelines.task_building.terminal.families.text import (
    EXPECTED,
    SERVICES,
    WORDS,
    fill,
    name_of,
    phrase,
)

# Settings of a repository can name programs that git starts: tests read a copy that has none.
GIT = """
import shutil
import subprocess
import tempfile


def copied():
    source, copy = Path(EXPECTED["repository"]) / ".git", Path(tempfile.mkdtemp()) / "copy"
    for name in ("objects", "refs"):
        shutil.copytree(source / name, copy / name, symlinks=True)
    for name in ("HEAD", "packed-refs", "index"):
        if (source / name).is_file():
            shutil.copy(source / name, copy / name)
    (copy / "config").write_text("[core]\\nrepositoryformatversion = 0\\nbare = false\\n")
    return copy


def git(*arguments):
    command = ["git", f"--git-dir={copied()}", f"--work-tree={EXPECTED['repository']}", *arguments]
    done = subprocess.run(command, cwd=EXPECTED["repository"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout
"""

BLAME = """
# 1. Walk the history of the file from the first commit on and read the value in each.
cd <<repository>>
previous=
git log --reverse --format=%H -- <<file>> > /tmp/commits
while IFS= read -r commit; do
    value=$(git show "$commit:<<file>>" | sed -n 's/^<<key>> *= *//p')
    if [ -n "$previous" ] && [ "$previous" = "<<good>>" ] && [ "$value" = "<<bad>>" ]; then
        echo "$commit"
    fi
    previous=$value
done < /tmp/commits > /tmp/found

# 2. The value may have been changed there and back: the last change to the bad one counts.
commit=$(tail -n 1 /tmp/found)
git show --stat "$commit"

# 3. Report it and put the good value back, in a commit of its own.
{ echo "$commit"; git log -1 --format=%an "$commit"; git log -1 --format=%s "$commit"; } > <<out>>
sed -i -E 's/^(<<key>> *= *).*/\\1<<good>>/' <<file>>
git commit --quiet --message "<<message>>" -- <<file>>
cat <<out>>
"""
BLAME_TESTS = (
    EXPECTED
    + GIT
    + """

def test_report():
    commit, author, subject = Path(EXPECTED["report"]).read_text().splitlines()
    assert (author, subject) == (EXPECTED["author"], EXPECTED["subject"]), (author, subject)
    wanted = git("log", "--all", "--format=%H", "--fixed-strings", f"--grep={EXPECTED['subject']}").split()
    assert [commit] == wanted, f"commit {commit}"


def test_value_is_mended_in_one_commit():
    assert git("show", f"HEAD:{EXPECTED['file']}") == EXPECTED["text"]
    assert git("log", "-1", "--format=%s").strip() == EXPECTED["message"]
    assert len(git("log", "--format=%H").split()) == EXPECTED["commits"] + 1
    assert git("diff", "--name-only", "HEAD~1", "HEAD").split() == [EXPECTED["file"]]


def test_working_tree_is_clean():
    assert git("status", "--porcelain") == ""
"""
)


def find_commit(rng: random.Random) -> TerminalDraft:
    """The commit after which a setting was wrong, among many that touch the same file."""
    service, out = rng.choice(SERVICES), f"/app/{name_of(rng)}.txt"
    repository, file, key = (
        f"/app/{service}",
        f"config/{rng.choice(WORDS)}.conf",
        f"{rng.choice(WORDS)}_{rng.choice(['limit', 'timeout', 'retries', 'workers'])}",
    )
    good, bad = rng.sample(range(2, 900), 2)
    values = {f"{word}_size": rng.randrange(1, 900) for word in rng.sample(WORDS, 5)} | {key: good}
    history, subjects = History(rng), iter(_subjects(rng))
    history.commit("Start", {"README.md": f"# {service}\n", file: _settings(values)})
    total = rng.randint(16, 30)
    culprit = rng.randint(6, total - 4)
    detour = rng.random() < 0.5  # broken once before and mended again
    author = subject = ""
    for number in range(1, total):
        line = next(subjects)
        if number == culprit:
            values[key] = bad
            subject, author = line, history.commit(line, {file: _settings(values)})
        elif detour and number in (2, 4):
            values[key] = bad if number == 2 else good
            history.commit(line, {file: _settings(values)})
        elif rng.random() < 0.6:
            values[rng.choice([name for name in values if name != key])] = rng.randrange(1, 900)
            history.commit(line, {file: _settings(values)})
        else:
            history.commit(line, {f"src/{rng.choice(WORDS)}.txt": f"{number} {rng.choice(WORDS)}\n"})
    message = f"Set {key} back to {good}"
    opening = phrase(
        rng,
        f"Since some time {service} is slow.",
        f"Our alarms for {service} went off.",
        f"{service} behaves oddly since a recent change.",
    )
    instruction = (
        f"{opening} The reason is in {repository}, a git repository: in {file} the value of `{key}` should "
        f"be {good}, but on branch main it is {bad}. It may have been wrong and mended before; what matters "
        "is the last commit that changed it to the wrong value.\n\n"
        f"1. Write {out} with three lines about that commit: its full hash, its author's name, and the first "
        "line of its message.\n"
        f"2. Set `{key}` to {good} again, change nothing else, and commit that on main as one commit with "
        f"the message `{message}`. Do not rewrite the history. Leave the working tree clean."
    )
    solution = fill(
        BLAME, repository=repository, file=file, key=key, good=good, bad=bad, out=out, message=message
    )
    return TerminalDraft(
        title=f"The commit that broke {key}",
        instruction=instruction,
        solution=solution,
        tests=BLAME_TESTS,
        difficulty="medium",
        files={"history.stream": history.stream()},
        setup=setup(repository),
        packages=("git",),
        expected={
            "repository": repository,
            "report": out,
            "file": file,
            "author": author.title(),
            "subject": subject,
            "text": _settings({**values, key: good}),
            "message": message,
            "commits": history.commits,
        },
    )


def _settings(values: dict[str, int]) -> str:
    return "# settings\n" + "".join(f"{name} = {value}\n" for name, value in values.items())


def _subjects(rng: random.Random) -> list[str]:
    """Different first lines of commit messages; no one is a part of another."""
    pairs = [(one, two) for one in WORDS[:20] for two in WORDS[20:]]
    verbs = ["Tune", "Adjust", "Describe", "Rework", "Simplify", "Move"]
    return [
        f"{rng.choice(verbs)} the {one} of {two} ({number})"
        for number, (one, two) in enumerate(rng.sample(pairs, 40))
    ]


RESTORE = """
# 1. The commits that deleted files of this name, anywhere in the tree.
cd <<repository>>
git log --diff-filter=D --name-only --format='commit %H' -- '<<name>>' '*/<<name>>' > /tmp/deleted
cat /tmp/deleted

# 2. The last version of each is the one before its deletion; the one with the wanted line is it.
commit=
while IFS= read -r line; do
    case "$line" in
        'commit '*) commit=${line#commit } ;;
        '') ;;
        *) if git show "$commit~1:$line" | grep -qxF '<<mark>>'; then path=$line; found="$commit~1"; fi ;;
    esac
done < /tmp/deleted
echo "restoring $path as of $found"

# 3. Bring it back to where it was and commit it.
git checkout --quiet "$found" -- "$path"
git commit --quiet --message '<<message>>'
echo "$path" > <<out>>
cat <<out>>
"""
RESTORE_TESTS = (
    EXPECTED
    + GIT
    + """

def test_path():
    assert Path(EXPECTED["report"]).read_text().split() == [EXPECTED["path"]]


def test_file_is_back():
    assert git("show", f"HEAD:{EXPECTED['path']}") == EXPECTED["text"]
    assert (Path(EXPECTED["repository"]) / EXPECTED["path"]).read_text() == EXPECTED["text"]


def test_one_commit_with_that_file_alone():
    assert git("log", "-1", "--format=%s").strip() == EXPECTED["message"]
    assert len(git("log", "--format=%H").split()) == EXPECTED["commits"] + 1
    assert git("diff", "--name-status", "HEAD~1", "HEAD").split() == ["A", EXPECTED["path"]]
    assert git("status", "--porcelain") == ""
"""
)


def restore_deleted(rng: random.Random) -> TerminalDraft:
    """A deleted file whose name was used in several folders and which changed several times before."""
    service, out, name = (
        rng.choice(SERVICES),
        f"/app/{name_of(rng)}.txt",
        f"{rng.choice(WORDS)}.{rng.choice(['md', 'ini', 'txt', 'csv'])}",
    )
    repository, subjects, history = f"/app/{service}", iter(_subjects(rng)), History(rng)
    folders = rng.sample(["docs", "old/docs", "tools", "data/raw", "data", "lib/core"], rng.randint(2, 4))
    places, chosen = [f"{folder}/{name}" for folder in folders], rng.randrange(len(folders))
    mark = f"owner: {rng.choice(WORDS)}-{rng.randrange(100, 999)}"
    history.commit("Start", {"README.md": f"# {service}\n"})
    texts: dict[str, str] = {}
    events = [(place, kind) for place in places for kind in range(3)]
    rng.shuffle(events)
    done: dict[str, int] = dict.fromkeys(places, 0)
    for place, _ in events:
        lines = [" ".join(rng.sample(WORDS, 5)) for _ in range(rng.randint(3, 6))]
        if place == places[chosen] and done[place] > 0:
            lines.insert(rng.randrange(len(lines)), mark)
        elif done[place] > 0:
            lines.insert(1, mark.replace("owner", "former owner"))
        texts[place] = "\n".join(lines) + "\n"
        done[place] += 1
        history.commit(next(subjects), {place: texts[place]})
    for place in rng.sample(places, len(places)):
        history.commit(next(subjects), {place: None, f"src/{rng.choice(WORDS)}.txt": f"{place}\n"})
        history.commit(next(subjects), {f"src/{rng.choice(WORDS)}.txt": f"{rng.random()}\n"})
    message = f"Bring back {name}"
    instruction = (
        f"Somebody deleted a file called {name} from the git repository {repository}, and we need it again. "
        "The difficulty: there were several files of that name in different folders, all deleted by now at "
        "different times. The right one is the one whose last version had the line\n\n"
        f"    {mark}\n\n"
        "(exactly that line).\n\n"
        "Bring it back on branch main, at the path where it was, with the content that it had just before "
        f"it was deleted, in one new commit with the message `{message}` that changes nothing else. Do not "
        "rewrite the history, and leave the working tree clean. Write the file's path relative to the "
        f"repository to {out}."
    )
    return TerminalDraft(
        title=f"Bring back {name}",
        instruction=instruction,
        tests=RESTORE_TESTS,
        difficulty="medium",
        solution=fill(RESTORE, repository=repository, name=name, mark=mark, message=message, out=out),
        files={"history.stream": history.stream()},
        setup=setup(repository),
        packages=("git",),
        expected={
            "repository": repository,
            "report": out,
            "path": places[chosen],
            "text": texts[places[chosen]],
            "message": message,
            "commits": history.commits,
        },
    )


MERGE = """
# 1. The merge stops at the lines that both sides changed.
cd <<repository>>
git merge <<branch>> || true
git diff --name-only --diff-filter=U

# 2. Take the three versions of the file and decide line by line.
git show :1:<<file>> > /tmp/base && git show :2:<<file>> > /tmp/ours && git show :3:<<file>> > /tmp/theirs
python3 - <<'END'
def read(name):
    return dict(line.rstrip("\\n").split(" = ", 1) for line in open(f"/tmp/{name}") if " = " in line)


base, ours, theirs = read("base"), read("ours"), read("theirs")
result = {}
for key in sorted(base.keys() | ours.keys() | theirs.keys()):
    mine, other, old = ours.get(key), theirs.get(key), base.get(key)
    if mine == other:
        value = mine
    elif mine == old:
        value = other  # only the branch changed or removed it
    elif other == old:
        value = mine
    elif mine is None or other is None:
        value = other if mine is None else mine  # changed on one side, removed on the other: the change stays
    else:
        value = str(<<rule>>(int(mine), int(other)))  # both changed it
    if value is not None:
        result[key] = value
with open("<<file>>", "w") as file:
    file.write("# limits\\n" + "".join(f"{key} = {value}\\n" for key, value in result.items()))
END

# 3. Conclude the merge.
git add <<file>>
git commit --quiet --message '<<message>>'
git log --oneline --graph -n 5
"""
MERGE_TESTS = (
    EXPECTED
    + GIT
    + """

def test_values():
    assert git("show", f"main:{EXPECTED['file']}") == EXPECTED["text"]


def test_other_files_of_both_sides():
    for name, text in EXPECTED["others"].items():
        assert git("show", f"main:{name}") == text, name


def test_it_is_one_merge_of_both_branches():
    hashes = git("log", "-1", "--format=%P", "main").split()
    parents = [git("log", "-1", "--format=%s", commit).strip() for commit in hashes]
    assert parents == EXPECTED["parents"], parents
    assert git("log", "-1", "--format=%s", "main").strip() == EXPECTED["message"]
    assert git("symbolic-ref", "HEAD").strip() == "refs/heads/main"
    assert git("status", "--porcelain") == ""
"""
)


def merge_branch(rng: random.Random) -> TerminalDraft:
    """Two branches changed, added and removed settings of one file; rules say which value wins."""
    service, branch = rng.choice(SERVICES), f"feature/{name_of(rng)}"
    repository, file, rule = (
        f"/app/{service}",
        f"{rng.choice(['conf', 'etc', 'settings'])}/{rng.choice(WORDS)}.limits",
        rng.choice(["max", "min"]),
    )
    names = rng.sample(WORDS, 22)
    base = {name: rng.randrange(10, 900) for name in sorted(names[:16])}
    ours, theirs, result = dict(base), dict(base), dict(base)
    for number, name in enumerate(rng.sample(sorted(base), 12)):
        one, two = rng.sample(range(1000, 9000), 2)
        kind = ["both", "both", "ours", "theirs", "ours gone", "theirs gone", "changed and gone"][number % 7]
        if kind == "both":
            ours[name], theirs[name], result[name] = (
                one,
                two,
                max(one, two) if rule == "max" else min(one, two),
            )
        elif kind == "ours":
            ours[name] = result[name] = one
        elif kind == "theirs":
            theirs[name] = result[name] = one
        elif kind == "changed and gone":
            ours[name] = result[name] = one
            del theirs[name]
        else:
            del (ours if kind == "ours gone" else theirs)[name], result[name]
    for name, side in zip(names[16:], [ours, theirs, ours, theirs, ours, theirs], strict=True):
        side[name] = result[name] = rng.randrange(10, 900)
    history, subjects = History(rng), iter(_subjects(rng))
    history.commit("Start", {"README.md": f"# {service}\n", file: _limits(base)})
    history.commit(next(subjects), {"src/a.txt": "a\n"})
    fork = f":{history.commits}"
    mine, other = next(subjects), next(subjects)
    history.commit(mine, {file: _limits(ours), "src/ours.txt": f"{mine}\n"})
    history.commit(other, {file: _limits(theirs), "src/theirs.txt": f"{other}\n"}, branch=branch, parent=fork)
    message = f"Merge {branch}"
    instruction = (
        f"Please merge the branch {branch} into main in the git repository {repository}. {file} was changed "
        "on both sides and conflicts. It is a comment line `# limits` followed by lines `name = number` in "
        "the order of their names. Resolve it like this, for each name:\n\n"
        "- changed, added or removed on one side only: that is what counts\n"
        f"- changed to different numbers on both sides: the {'larger' if rule == 'max' else 'smaller'} of "
        "the two numbers counts\n"
        "- changed on one side and removed on the other: the changed number stays\n\n"
        "Keep the form of the file: the comment line first, then all names in byte order, one space on each "
        "side of the equals sign. All other files are merged as git does it. The result must be one merge "
        f"commit on main, whose first parent is main as it was and whose second parent is {branch}, with the "
        f"message `{message}`. Leave main checked out and the working tree clean."
    )
    return TerminalDraft(
        title=f"Merge {branch}",
        instruction=instruction,
        tests=MERGE_TESTS,
        difficulty="hard",
        packages=("git",),
        solution=fill(MERGE, repository=repository, branch=branch, file=file, rule=rule, message=message),
        files={"history.stream": history.stream()},
        setup=setup(repository),
        expected={
            "repository": repository,
            "file": file,
            "text": _limits(result),
            "message": message,
            "parents": [mine, other],
            "others": {
                "README.md": f"# {service}\n",
                "src/a.txt": "a\n",
                "src/ours.txt": f"{mine}\n",
                "src/theirs.txt": f"{other}\n",
            },
        },
    )


def _limits(values: dict[str, int]) -> str:
    return "# limits\n" + "".join(f"{name} = {values[name]}\n" for name in sorted(values))
