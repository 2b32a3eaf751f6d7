"""A Debian patch series (format 3.0, quilt) on its upstream tree: a state of the project after each patch."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data_pipelines.task_building.candidate import Rejected
from data_pipelines.task_building.swe.project import LEFT_OUT

SECONDS = 60


@dataclass(frozen=True)
class Step:
    """A patch, and the project without and with it; all patches before it are in both."""

    name: str
    text: str
    before: Path
    after: Path


def read_series(patches: Path) -> list[str]:
    """Names of the patches in a ``debian/patches`` folder, in the order of its ``series``. A package without
    patches has no such folder. Raises ``Rejected`` for what the format does not allow.
    """
    series = patches / "series"
    names = []
    for line in series.read_text(encoding="utf-8").splitlines() if series.is_file() else ():
        name, *options = re.sub(r"(?:^|\s)#.*", "", line).split() or [""]
        if options not in ([], ["-p1"]):
            raise Rejected("a Debian patch series has options other than -p1")
        if name:
            names.append(name)
    for name in names:
        if not (patches / name).resolve().is_relative_to(patches.resolve()) or not (patches / name).is_file():
            raise Rejected("a Debian patch series names a patch that is not there")
    return names


def steps(upstream: Path, patches: Path, target: Path) -> Iterator[Step]:
    """Apply the series; its states are folders ``<target>-<number>`` and stay there for the next time.

    Raises ``Rejected`` at the first patch that does not apply: those after it build upon it.
    """
    before = upstream
    for number, name in enumerate(read_series(patches), start=1):
        after = target.with_name(f"{target.name}-{number:02d}")
        if not after.is_dir():
            draft = target.with_name(f"{target.name}.draft")
            shutil.rmtree(draft, ignore_errors=True)
            shutil.copytree(before, draft)
            _apply(patches / name, draft)
            draft.replace(after)
        yield Step(name, (patches / name).read_text(encoding="utf-8", errors="replace"), before, after)
        before = after


def _apply(patch: Path, tree: Path) -> None:
    """Without fuzz, as dpkg-source does. What releases are unpacked without is passed over, paths that lead
    out are refused by git; where the tree lies in a repository, git shall not know.
    """
    excluded = [f"--exclude={pattern}" for pattern in (*LEFT_OUT, "*.egg-info/*")]
    environment = {
        "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent),
    }  # fmt: skip
    command = ["git", "apply", "--whitespace=nowarn", *excluded, str(patch.resolve())]
    result = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=SECONDS)
    if result.returncode:
        shutil.rmtree(tree)
        raise Rejected("a Debian patch does not apply: it and those after it are left out")
