"""The files of a small Debian with Python and pip, taken from this host's own packages.

No registry can be reached where tests run, and debootstrap takes half a minute: the installed packages hold
the same files, and dpkg knows which.
"""

import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

PACKAGES = (
    *("base-files", "base-passwd", "bash", "coreutils", "dash", "diffutils", "findutils", "grep", "gzip"),
    *(
        "hostname",
        "libc-bin",
        "login",
        "mawk",
        "ncurses-bin",
        "sed",
        "tar",
        "util-linux",
        "perl-base",
        "python3",
    ),
)
WANTED = ("python3-pip",)  # taken along where it is installed
LEFT_OUT = (
    "/usr/share/doc/",
    "/usr/share/man/",
    "/usr/share/info/",
    "/usr/share/locale/",
    "/usr/share/lintian/",
)
LINKS = {
    "usr/bin/awk": "mawk",
    "usr/bin/which": "which.debianutils",
    "usr/local/bin/python3": "/usr/bin/python3",
    "usr/local/bin/python": "/usr/bin/python3",
    "usr/local/bin/pip": "/usr/bin/pip",
    "usr/local/bin/pip3": "/usr/bin/pip",
}
CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt"  # made when its package is installed, so dpkg does not list it
)


class CannotMake(Exception):
    """Why there is no base image."""


def base_image(path: Path, packages: tuple[str, ...] = PACKAGES) -> Path:
    """Write a root file system with these packages as a tar (of about 90 MB). Raises ``CannotMake``."""
    if not shutil.which("dpkg-query"):
        raise CannotMake("needs a Debian host: the base image is made of its packages")
    depends, provides = _read_packages()
    if missing := [name for name in packages if name not in depends]:
        raise CannotMake(f"the base image needs the packages {', '.join(missing)}")
    wanted = [name for name in WANTED if name in depends and "python3" in packages]
    names = _closure([*packages, *wanted], depends, provides)
    with tarfile.open(path, "w") as archive:
        for file in _files(names):
            archive.add(file, file.lstrip("/") or ".", recursive=False)
        for name, target in LINKS.items():
            if os.path.lexists(os.path.join("/usr/bin", target)):
                _add_link(archive, name, target)
        for kind in ("passwd", "group"):
            archive.add(f"/usr/share/base-passwd/{kind}.master", f"etc/{kind}")
    return path


def _read_packages() -> tuple[dict[str, list[list[str]]], dict[str, str]]:
    """What each installed package depends on, and who provides a virtual one."""
    fields = "${db:Status-Status}\t${Package}\t${Pre-Depends}, ${Depends}\t${Provides}\n"
    answer = subprocess.run(["dpkg-query", "-W", "-f", fields], capture_output=True, text=True, check=True)
    depends: dict[str, list[list[str]]] = {}
    provides: dict[str, str] = {}
    for line in answer.stdout.splitlines():
        status, package, needed, virtual = line.split("\t")
        if status == "installed":
            depends[package] = _names(needed)
            provides.update({name: package for (name, *_) in _names(virtual)})
    return depends, provides


def _names(text: str) -> list[list[str]]:
    """``a (>= 1) | b, c:any`` as [[a, b], [c]]."""
    parts = [part for part in text.split(",") if part.strip()]
    return [[re.split(r"[ (:]", one.strip())[0] for one in part.split("|")] for part in parts]


def _closure(names: list[str], depends: dict[str, list[list[str]]], provides: dict[str, str]) -> list[str]:
    found: set[str] = set()
    while names:
        name = names.pop()
        if name in found:
            continue
        found.add(name)
        for alternatives in depends[name]:
            installed = [one if one in depends else provides.get(one) for one in alternatives]
            names += [one for one in installed if one][:1]
    return sorted(found)


def _files(packages: list[str]) -> list[str]:
    """Every file, folder and link of the packages, folders first, under its real path (/bin is a link)."""
    answer = subprocess.run(["dpkg-query", "-L", *packages], capture_output=True, text=True, check=True)
    paths = {"/bin", "/sbin", "/lib", "/lib64", CERTIFICATES, os.path.dirname(CERTIFICATES)}
    for line in answer.stdout.splitlines():
        if line.startswith("/") and line != "/." and not f"{line}/".startswith(LEFT_OUT):
            paths.add(os.path.join(os.path.realpath(os.path.dirname(line)), os.path.basename(line)))
    managed = re.compile(r"/python3\.\d+/EXTERNALLY-MANAGED$")  # the images of Docker's library have none
    replaced = {f"/{name}" for name in LINKS}
    kept = {path for path in paths - replaced if os.path.lexists(path) and not managed.search(path)}
    return sorted(kept | {str(parent) for path in kept for parent in Path(path).parents})


def _add_link(archive: tarfile.TarFile, name: str, target: str) -> None:
    link = tarfile.TarInfo(name)
    link.type, link.linkname = tarfile.SYMTYPE, target
    archive.addfile(link)
