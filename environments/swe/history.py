"""A project as the agent gets it: one fresh commit, and nothing from which the fix can be read.

Agents solve tasks by reading the repository's future (SWE-bench issue 465): commits, tags, reflogs, remotes.
They can read it from what a build left behind, too: compiled files, an installed copy, a changelog.
``freshen`` leaves none of it, ``faults`` looks for it again and knows the fix it must not find.
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from environments.swe.patches import added_lines

VERSION_CONTROL = (".git", ".hg", ".svn", ".bzr", "CVS", "_darcs", ".fslckout", ".gitmodules")
BUILT = (
    "__pycache__", "*.pyc", "*.pyo", "*.egg-info", "*.dist-info", "*.egg", ".eggs", ".tox", ".nox",
    ".pytest_cache", ".mypy_cache", ".ruff_cache", ".coverage", "htmlcov", "PKG-INFO",
)  # fmt: skip
LEFT_BEHIND = ("*.orig", "*.rej", "*.bak", "*.swp", "*~", "*.patch", "*.diff")
AT_TOP = ("build", "dist")
IDENTITY = {
    "GIT_AUTHOR_NAME": "Maintainer", "GIT_AUTHOR_EMAIL": "maintainer@example.org",
    "GIT_AUTHOR_DATE": "2020-01-01T00:00:00+0000", "GIT_COMMITTER_DATE": "2020-01-01T00:00:00+0000",
    "GIT_COMMITTER_NAME": "Maintainer", "GIT_COMMITTER_EMAIL": "maintainer@example.org",
}  # fmt: skip
# What a repository with one packed commit consists of, and nothing else.
ALLOWED = re.compile(
    r"HEAD|config|index|objects|objects/pack|objects/pack/pack-\w+\.(pack|idx|rev)|objects/info|refs|refs/heads"
    r"|refs/heads/main|refs/tags"
)
SHORTEST_LINE = 20  # characters without white space from which an added line of the fix is told from chance
LARGEST_FILE = 4 * 2**20


def freshen(folder: Path) -> None:
    """Remove all history and build leftovers below ``folder``; commit the rest, the same way every time."""
    for path in [path for path in folder.rglob("*") if _is_leftover(path, folder)]:
        _remove(path)
    _git(folder, "init", "--quiet", "--initial-branch=main", "--template=")
    _git(folder, "add", "--all", "--force")
    _git(folder, "commit", "--quiet", "--allow-empty", "--no-verify", "--message=The project as it stands")
    _git(folder, "-c", "pack.threads=1", "repack", "-adqn")
    repository = folder / ".git"
    for name in ("logs", "COMMIT_EDITMSG", "info"):
        _remove(repository / name)


def faults(folder: Path, fix: str = "") -> list[str]:
    """What is wrong with a project that ``freshen`` made, a sentence each: leftovers, other commits, the fix.

    ``fix``: the patch that solves the task. None of its added lines may stand in a file, unless that file
    had it anyway, or in an object of the repository.
    """
    found = [
        f"{path.relative_to(folder)} is a leftover of version control or a build"
        for path in sorted(folder.rglob("*"))
        if path.relative_to(folder).parts[0] != ".git" and _is_leftover(path, folder)
    ]
    return found + _repository_faults(folder) + _lines_of_the_fix(folder, fix)


def copies_command(package: str, target: str) -> str:
    """A command that writes to ``target``, in a sandbox, what it can read of other copies of ``package``
    (a folder or a module): a JSON object of texts by path below it, for ``shown_by``.
    """
    return f"python3 -I -c {shlex.quote(_LIST_COPIES)} {shlex.quote(package)} {shlex.quote(target)}"


_LIST_COPIES = """\
import json, os, re, sys
package, target = sys.argv[1:]
archive = re.compile(re.escape(package) + r"-\\d.*[.](whl|tar|gz|zip|egg|deb)", re.I)
found = {}
def take(path, name):
    try:
        with open(path, errors="replace") as file:
            found.setdefault(name, []).append(file.read(1 << 20))
    except OSError:
        pass
for folder, folders, files in os.walk("/"):
    if folder == "/":
        folders[:] = [name for name in folders if name not in ("proc", "sys", "dev", "app")]
    if os.path.basename(folder) == package:
        for below, _, names in os.walk(folder):
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(below, name)
                    take(path, os.path.relpath(path, folder))
    for name in files:
        if name == package + ".py":
            take(os.path.join(folder, name), name)
        elif archive.fullmatch(name):
            found.setdefault(":archives", []).append(os.path.join(folder, name))
with open(target, "w") as file:
    json.dump(found, file)
"""


def shown_by(copies: dict[str, list[str]], package: str, fix: str) -> str | None:
    """Where the fix stands in copies that ``copies_command`` found; None where it does not.

    ``package``: its path in the project, as the fix names it. Archives of it are not looked into.
    """
    if archives := copies.get(":archives"):
        return archives[0]
    for target, lines in added_lines(fix).items():
        telling = {line for line in map(_squeezed, lines) if len(line) >= SHORTEST_LINE}
        name = target.removeprefix(package + "/") if target != package else Path(package).name
        for text in copies.get(name, []) if telling else ():
            if telling <= set(map(_squeezed, text.split("\n"))):
                return name
    return None


def _is_leftover(path: Path, folder: Path) -> bool:
    at_top = path.parent == folder and path.name in AT_TOP
    return at_top or path.name in VERSION_CONTROL or any(map(path.match, BUILT + LEFT_BEHIND))


def _repository_faults(folder: Path) -> list[str]:
    repository = folder / ".git"
    if not repository.is_dir():
        return ["there is no repository of its own"]
    found = []
    for path in sorted(repository.rglob("*")):
        name = path.relative_to(repository).as_posix()
        if not ALLOWED.fullmatch(name):
            found.append(f".git/{name} does not belong into a fresh repository")
    if "[remote" in (repository / "config").read_text():
        found.append("the repository has a remote")
    commits = _git(
        folder, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype) %(objectname)"
    ).split("\n")
    kinds = [line.split()[0] for line in commits if line]
    if kinds.count("commit") != 1:
        found.append(f"the repository holds {kinds.count('commit')} commits")
    reachable = set(_git(folder, "rev-list", "--objects", "--no-object-names", "HEAD").split())
    unknown = {line.split()[1] for line in commits if line} - reachable
    if unknown:
        found.append(f"{len(unknown)} objects belong to no commit")
    if _git(folder, "status", "--porcelain"):
        found.append("the commit is not what lies in the folder")
    return found


def _lines_of_the_fix(folder: Path, fix: str) -> list[str]:
    """One line of it in a text is enough. Code may have a line by chance, so of code whole copies are looked
    for. Objects need no search: ``_repository_faults`` finds them equal to the files.
    """
    found = []
    for target, lines in added_lines(fix).items():
        telling = {line for line in map(_squeezed, lines) if len(line) >= SHORTEST_LINE}
        for path in sorted(folder.rglob("*")) if telling else ():
            inside = path.relative_to(folder)
            if inside.parts[0] == ".git" or not path.is_file() or path.stat().st_size > LARGEST_FILE:
                continue
            seen = telling & set(map(_squeezed, path.read_text(errors="replace").split("\n")))
            copied = path.name == Path(target).name and inside.as_posix() != target and seen == telling
            if copied or (seen and path.suffix != Path(target).suffix):
                found.append(f"{inside} has a line of the fix: {min(seen)}")
    return found


def _squeezed(line: str) -> str:
    return "".join(line.split())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _git(folder: Path, *arguments: str) -> str:
    """git with no configuration but its own defaults."""
    environment = {
        **IDENTITY, "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CEILING_DIRECTORIES": str(folder.parent),
    }  # fmt: skip
    command = ["git", "-c", "safe.directory=*", "-c", "core.autocrlf=false", "-c", "gc.auto=0", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", check=True
    ).stdout
