"""Source distributions from the package index: exact pins, checked by hash, their code not run.

``pip download`` builds a source distribution's metadata, which runs its setup.py. So pip is only asked where
the file lies (every setting of pip holds: index, proxy, certificates) and for its bytes.
"""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from pipeline.artifacts import hash_file
from pipeline.errors import UserError

SECONDS = 300
MAX_BYTES = 64 * 2**20  # of an unpacked archive

# Runs in a process of its own, since pip has no public interface for it: name, version, target file.
_FETCH = """\
import sys
from pip._internal.commands import create_command
name, version, target = sys.argv[1:]
command = create_command("download")
with command.main_context():
    options, _ = command.parse_args(["--quiet", "--no-deps", "--no-binary", name, name])
    session = command.get_default_session(options)
    finder = command._build_package_finder(options, session)
    links = [found.link for found in finder.find_all_candidates(name)
             if str(found.version) == version and not found.link.is_wheel]
    if not links:
        sys.exit(f"the package index has no source distribution of {name} {version}")
    answer = session.get(links[0].url_without_fragment)
    answer.raise_for_status()
    with open(target, "wb") as file:
        file.write(answer.content)
"""


def fetch(name: str, version: str, sha256: str, downloads: Path) -> Path:
    """The archive in ``downloads``, fetched when it is not there. Raises ``UserError`` in one sentence."""
    archive = downloads / f"{name}-{version}.tar.gz"
    if not archive.is_file():
        downloads.mkdir(parents=True, exist_ok=True)
        partial = archive.with_suffix(".partial")
        command = [sys.executable, "-c", _FETCH, name, version, str(partial)]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
            reason = None if result.returncode == 0 else _reason(result.stderr)
        except subprocess.TimeoutExpired:
            reason = f"no answer in {SECONDS} s"
        if reason:
            raise UserError(
                f"{name} {version} could not be fetched ({reason}); put {archive.name} into {downloads} or "
                "take the project out of the recipe"
            )
        partial.replace(archive)
    return checked(archive, sha256)


def checked(archive: Path, sha256: str) -> Path:
    """The archive itself. Raises ``UserError`` where it is another one."""
    found = hash_file(archive)
    if found != sha256:
        raise UserError(
            f"{archive} has SHA-256 {found}, expected is {sha256}: delete it, so that it is fetched again"
        )
    return archive


def _reason(said: str) -> str:
    if "connection broken by" in said or "Max retries exceeded" in said:
        return "the package index does not answer"
    return (said.strip().splitlines() or ["pip gave no reason"])[-1]


def unpack(archive: Path, target: Path) -> None:
    """Make ``target`` the archive's one top folder. Links, devices and paths that lead out are refused."""
    draft = target.with_name(target.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        with tarfile.open(archive) as content:
            members = [member for member in content.getmembers() if member.isfile() or member.isdir()]
            if sum(member.size for member in members) > MAX_BYTES:
                raise UserError(f"{archive} unpacks to more than {MAX_BYTES // 2**20} MB: no small project")
            content.extractall(draft, members, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"{archive} cannot be unpacked: {error}") from None
    tops = list(draft.iterdir())
    if len(tops) != 1 or not tops[0].is_dir():
        raise UserError(f"{archive} does not hold one folder at its top: it is no source distribution")
    shutil.rmtree(target, ignore_errors=True)
    tops[0].replace(target)
    draft.rmdir()
