"""A Debian package as a source: fetched with apt where there is one, read without running it."""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

from pipeline.errors import UserError

SECONDS = 300
MAGIC, HEADER = b"!<arch>\n", 60  # bytes; ar: name 16, date 12, owner 6, group 6, mode 8, size 10, end 2


def find_or_fetch(package: str, downloads: Path) -> Path:
    """The ``.deb`` file in ``downloads``; fetched when it is not there, else ``UserError``."""
    found = sorted(downloads.glob(f"{package}_*.deb"))
    if found:
        return found[-1]
    downloads.mkdir(parents=True, exist_ok=True)
    reason = _fetch(package, downloads)
    found = sorted(downloads.glob(f"{package}_*.deb"))
    if not found:
        raise UserError(
            f"the Debian package {package} could not be fetched ({reason}); put its .deb file into "
            f"{downloads} or take the source out of the recipe"
        )
    return found[-1]


def _fetch(package: str, downloads: Path) -> str:
    apt = shutil.which("apt-get")
    if apt is None:
        return "there is no apt-get here"
    try:
        result = subprocess.run(
            [apt, "download", package], cwd=downloads, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {SECONDS} s"
    return (result.stderr.strip().splitlines() or ["apt-get gave no reason"])[-1]


def read_members(package: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """Files of a package by their path below ``/``. Raises ``UserError`` for a damaged package."""
    found = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(_data(package))) as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if name in names and member.isfile():
                    found[name] = archive.extractfile(member).read()
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise UserError(
            f"{package} is no readable Debian package ({error}): delete it, so that it is fetched again"
        ) from None
    missing = sorted(set(names) - set(found))
    if missing:
        raise UserError(f"{package} does not hold {', '.join(missing)}: it is another version than expected")
    return found


def _data(package: Path) -> bytes:
    """The archive ``data.tar.*`` in the ar archive that a package is."""
    content = package.read_bytes()
    if not content.startswith(MAGIC):
        raise ValueError("it does not begin as one")
    at = len(MAGIC)
    while at + HEADER <= len(content):
        name, size = content[at : at + 16].decode("ascii", "replace").strip(), int(content[at + 48 : at + 58])
        start = at + HEADER
        if name.rstrip("/").startswith("data.tar"):
            return content[start : start + size]
        at = start + size + size % 2
    raise ValueError("it has no data")
