"""Debian's changes to a project (``.debian.tar.xz``), fetched by apt from the machine's own Debian sources.

The machine's lists name packages with programs; the same lists with ``deb-src`` are written into a folder of
their own, so nothing of the machine's configuration or of apt's state is touched, and root is not needed.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from data_pipelines.task_building.candidate import Rejected
from data_pipelines.task_building.swe import sdists
from data_pipelines.task_building.swe.project import Release

SECONDS = 300
# Read after the machine's own. Without what a machine does after each update, such as cleaning its cache.
SETTINGS = """\
#clear APT::Update;
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{folder}/parts";
Dir::State::lists "{folder}/lists";
Dir::Cache "{folder}/cache";
Acquire::Retries "2";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
"""


@dataclass(frozen=True)
class SourcePackage:
    """A Debian source package whose upstream archive is a source distribution of the package index, byte for
    byte. The checksums are those that its ``.dsc`` lists.
    """

    name: str
    version: str
    sha256: str  # of the .debian.tar.xz
    upstream: Release

    @property
    def archive(self) -> str:
        return f"{self.name}_{self.version.partition(':')[2] or self.version}.debian.tar.xz"


class AptSources:
    """``folder``: an empty one that others may enter, since apt drops its rights. ``etc``: apt's settings."""

    def __init__(self, folder: Path, etc: Path = Path("/etc/apt")) -> None:
        self._folder, self._etc = folder, etc
        self._fault: str | None = None  # why there are no sources: asked once
        self._ready = False

    def fetch(self, package: SourcePackage, downloads: Path) -> Path:
        """The package's archive in ``downloads``, fetched when it is not there.

        Raises ``Rejected`` in one sentence where it is not to be had, ``UserError`` for a wrong checksum.
        """
        archive = downloads / package.archive
        if not archive.is_file():
            self._prepare()
            self._get(package, archive)
        return sdists.checked(archive, package.sha256)

    def _prepare(self) -> None:
        if not self._ready and self._fault is None:
            self._fault, self._ready = self._update(), True
        if self._fault:
            raise Rejected(f"Debian sources are not to be had here: {self._fault}")

    def _update(self) -> str | None:
        """Fetch the indices of sources; what stands in the way, None where nothing does."""
        if shutil.which("apt-get") is None:
            return "there is no apt-get"
        self._folder.chmod(0o755)
        for name in ("parts", "lists/partial", "cache/archives/partial", "files"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        (self._folder / "apt.conf").write_text(SETTINGS.format(folder=self._folder), encoding="utf-8")
        for name, text in source_lists(self._etc).items():
            (self._folder / "parts" / name).write_text(text, encoding="utf-8")
        said = self._apt("update")
        if not list((self._folder / "lists").glob("*Sources*")):
            return f"no index of sources came ({said})"
        return None

    def _get(self, package: SourcePackage, archive: Path) -> None:
        said = self._apt("source", "--download-only", "--diff-only", f"{package.name}={package.version}")
        found = self._folder / "files" / package.archive
        if not found.is_file():
            raise Rejected(f"{package.name} {package.version} is not to be had from Debian here ({said})")
        archive.parent.mkdir(parents=True, exist_ok=True)
        partial = archive.with_suffix(".partial")
        shutil.copyfile(found, partial)
        partial.replace(archive)

    def _apt(self, *arguments: str) -> str:
        """The first error that apt tells of, if any."""
        command = ["apt-get", "-q", "-c", str(self._folder / "apt.conf"), *arguments]
        try:
            result = subprocess.run(
                command, cwd=self._folder / "files", env={**os.environ, "LC_ALL": "C.UTF-8"}, timeout=SECONDS,
                capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"no answer in {SECONDS} s"
        told = [line for line in result.stderr.splitlines() if line.startswith(("E: ", "W: "))]
        errors = [line for line in told if line.startswith("E: ")] or told
        return errors[0][3:] if errors else "apt-get gave no reason"


def source_lists(etc: Path) -> dict[str, str]:
    """apt's lists of sources below ``etc`` with ``deb-src`` in place of ``deb``, by file name.

    Of both forms, one line a source and ``.sources`` (``man 5 sources.list``).
    """
    parts = sorted((etc / "sources.list.d").glob("*")) if (etc / "sources.list.d").is_dir() else []
    lists = {}
    for path in [etc / "sources.list", *parts]:
        if path.suffix == ".list" and path.is_file():
            lists[path.name] = re.sub(r"^[ \t]*deb(?:-src)?(?=\s)", "deb-src", _text(path), flags=re.M)
        elif path.suffix == ".sources" and path.is_file():
            lists[path.name] = re.sub(r"^Types:.*$", "Types: deb-src", _text(path), flags=re.M | re.I)
    return lists


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
