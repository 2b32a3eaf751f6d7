"""Write a candidate's Harbor folder: whole or not at all."""

import hashlib
import os
import shutil
from pathlib import Path

from data_pipelines.task_building.candidate import Candidate, Rejected

NEEDED = ("task.toml", "instruction.md", "environment/Dockerfile", "solution/solve.sh", "tests/test.sh")
SCRIPTS = ("solution/solve.sh", "tests/test.sh")
TEXTS = ("task.toml", "instruction.md", "environment/Dockerfile", *SCRIPTS)
MARK = b"\xef\xbb\xbf"


def implement(candidate: Candidate, folder: Path) -> list[str]:
    """Write ``folder`` anew and repair by machine what can be; returns what was repaired, in words.

    A killed run leaves nothing under the folder's name. Raises ``Rejected``.
    """
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        candidate.write(draft)
        missing = [name for name in NEEDED if not (draft / name).is_file()]
        if missing:
            raise Rejected(f"a file is missing: {', '.join(missing)}")
        repaired = repair(draft)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return repaired


def repair(folder: Path) -> list[str]:
    """Line ends, byte order marks, first lines and modes: what breaks a task and means nothing."""
    done = []
    for name in TEXTS:
        path = folder / name
        content = before = path.read_bytes()
        content = content.removeprefix(MARK).replace(b"\r\n", b"\n")
        if name in SCRIPTS and not content.startswith(b"#!"):
            content = b"#!/bin/bash\n" + content
        if not content.endswith(b"\n"):
            content += b"\n"
        if content != before:
            path.write_bytes(content)
            done.append(f"{name}: line ends, byte order mark or first line")
        if name in SCRIPTS and not path.stat().st_mode & 0o100:
            path.chmod(0o755)
            done.append(f"{name}: was not executable")
    return done


def content_digest(folder: Path) -> str:
    """SHA-256 over what makes up the task, without task.toml, which has a name of its own in each."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() or path.is_symlink()):
        name = path.relative_to(folder).as_posix()
        if name != "task.toml":
            content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
            mode = b"x" if not path.is_symlink() and path.stat().st_mode & 0o100 else b"-"
            digest.update(f"{name}\0{len(content)}\0".encode() + mode + content)
    return digest.hexdigest()
