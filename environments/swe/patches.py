"""Apply a model's patch in a sandbox, with the fall-backs that such patches need, and say how it went."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from environments.sandbox.interface import Result

PATCH, SAVED = "/tmp/model.patch", "/tmp/model.saved.tar"
SECONDS = 60.0
# Each must apply the whole patch: a partly applied one is undone before the next is tried. A three-way merge
# wants the index to be what lies in the folder.
WAYS = (
    ("git apply", "git apply --whitespace=nowarn {patch}"),
    ("git apply --3way", "git add --all . && git apply --whitespace=nowarn --3way {patch}"),
    ("patch --fuzz=5", "patch --batch --forward --fuzz=5 --strip=1 --no-backup-if-mismatch --input={patch}"),
)
REVERSE = "git apply --whitespace=nowarn --reverse --check {patch}"
REJECTS = "git apply --whitespace=nowarn --reject {patch}"
_FENCE = re.compile(r"\A\s*```[a-z]*\n(.*?)\n?```\s*\Z", re.S)
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_TARGET = re.compile(r"(?:---|\+\+\+) (?:[ab]/)?([^\t\n]+)|(?:rename|copy) (?:from|to) (.+)")


class Box(Protocol):
    """What is needed of a sandbox."""

    async def run(self, command: str, *, seconds: float = 60.0, cwd: str | None = None) -> Result: ...

    async def write(self, path: str, content: bytes, mode: int = 0o644) -> None: ...


@dataclass(frozen=True)
class Applied:
    """``way`` is how the patch went in, None when it did not; then the project is as it was."""

    way: str | None
    reason: str
    rejected: tuple[str, ...] = ()  # files whose hunks found no place


async def apply_patch(box: Box, patch: str, folder: str) -> Applied:
    """Apply ``patch`` to the git repository at ``folder``: git apply, a three-way merge, patch with fuzz.

    A patch that is applied already counts as applied. What the agent changed before stays when none works.
    """
    patch = normal(patch)
    targets = sorted(set(targets_of(patch)))
    if not targets:
        return Applied(None, "the patch is empty or no unified diff")
    outside = [name for name in targets if name.startswith("/") or {"..", ".git"} & {*name.split("/")}]
    if outside:
        return Applied(None, f"the patch names {outside[0]}, which is not a file of the project")
    await box.write(PATCH, patch.encode())
    saved = await _save(box, folder, targets)
    if saved.returncode:
        return Applied(None, f"{folder} is no git repository: {_last(saved)}")
    reasons = []
    for way, command in WAYS:
        result = await _run(box, command, folder)
        if result.returncode == 0 and not await _conflicts(box, folder):
            await _run(box, "git reset --quiet", folder)
            return Applied(way, "applied")
        reasons.append(f"{way}: {_last(result)}")
        await _undo(box, folder, targets)
        if way == "git apply" and (await _run(box, REVERSE, folder)).returncode == 0:
            return Applied("already applied", "the reverse of the patch applies")
    rejected = await _rejected(box, folder)
    await _undo(box, folder, targets)
    return Applied(None, "; ".join(reasons), rejected)


def normal(patch: str) -> str:
    """Without a Markdown fence, with one newline at its end, lines ended as Unix does."""
    patch = patch.replace("\r\n", "\n")
    fenced = _FENCE.match(patch)
    return (fenced[1] if fenced else patch).strip("\n") + "\n"


def targets_of(patch: str) -> Iterator[str]:
    """The files that a unified diff names, ``/dev/null`` left out."""
    for header, line in _lines(patch):
        match = _TARGET.match(line) if header else None
        if match and (name := (match[1] or match[2]).strip()) != "/dev/null":
            yield name


def added_lines(patch: str) -> dict[str, list[str]]:
    """The lines that a unified diff adds, by file name, without their sign."""
    lines: dict[str, list[str]] = {}
    name = ""
    for header, line in _lines(patch):
        if header and line.startswith("+++ "):
            name = re.sub(r"^[ab]/", "", line[4:].split("\t")[0])
        elif not header and line.startswith("+"):
            lines.setdefault(name, []).append(line[1:])
    return lines


def changed_lines(patch: str) -> int:
    """How many lines a unified diff removes and adds."""
    return sum(not header and line[:1] in ("+", "-") for header, line in _lines(patch))


def _lines(patch: str) -> Iterator[tuple[bool, str]]:
    """Each line, and whether it is a header: what a hunk removes or adds may look like one."""
    left = 0  # lines of old and new text that the hunk still has
    for line in patch.split("\n"):
        hunk = _HUNK.match(line)
        if hunk:
            left = int(hunk[1] or 1) + int(hunk[2] or 1)
        elif left > 0 and not line.startswith("diff --git "):
            left -= 2 if line[:1] in (" ", "") else 1 if line[0] in "+-" else 0
            yield False, line
            continue
        yield True, line


async def _run(box: Box, command: str, folder: str) -> Result:
    return await box.run(command.format(patch=shlex.quote(PATCH)), seconds=SECONDS, cwd=folder)


async def _conflicts(box: Box, folder: str) -> bool:
    """A three-way merge ends well and leaves conflict marks."""
    unmerged = await _run(box, "git ls-files --unmerged", folder)
    return bool(unmerged.output.strip())


async def _rejected(box: Box, folder: str) -> tuple[str, ...]:
    """Which files have hunks without a place, as ``git apply --reject`` leaves them."""
    await _run(box, REJECTS, folder)
    listed = await _run(box, "git ls-files --others -- '*.rej'", folder)
    return tuple(name.removesuffix(".rej") for name in listed.output.split("\n") if name)


async def _save(box: Box, folder: str, targets: list[str]) -> Result:
    """Keep what is there of the files that a patch may touch, committed or not."""
    keep = '[ -e "$name" ] || [ -L "$name" ] && printf "%s\\0" "$name"'
    pack = f"tar --create --file={SAVED} --null --files-from=-"
    return await _run(
        box, f"git rev-parse && for name in {_touched(targets)}; do {keep}; done | {pack}", folder
    )


async def _undo(box: Box, folder: str, targets: list[str]) -> None:
    """Put them back."""
    await _run(box, f"git reset --quiet; rm -f -- {_touched(targets)}; tar --extract --file={SAVED}", folder)


def _touched(targets: list[str]) -> str:
    return " ".join(shlex.quote(name + end) for name in targets for end in ("", ".rej", ".orig"))


def _last(result: Result) -> str:
    return (result.output.strip().split("\n") or [""])[-1][:200] or f"exit code {result.returncode}"
