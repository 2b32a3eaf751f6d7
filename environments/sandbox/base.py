"""The bottom layer of every image: a small root with links into the host's /usr, a short /etc, and a copy of
the running Python in /usr/local, as the images of Docker's library have it.

Only what is named here is there: /usr/local, /root, /home, /var and /etc of the host are not. The host's
/usr is mounted over the empty ``usr`` for reading, and ``usr/local`` over that again.
"""

import hashlib
import os
import shutil
import sys
from pathlib import Path

FORMAT = 1  # raised when what is made here changes
FOLDERS = (
    "etc",
    "home",
    "media",
    "mnt",
    "opt",
    "proc",
    "root",
    "run",
    "srv",
    "sys",
    "usr/local",
    "var/log",
    "dev",
)
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
OPEN_FOLDERS = ("tmp", "var/tmp")
COPIED = (  # of the host's /etc: none tells anything about who uses it
    "alternatives", "ca-certificates.conf", "debian_version", "java-17-openjdk", "ld.so.conf.d",
    "mime.types", "protocols", "services", "ssl/certs", "ssl/openssl.cnf", "perl", VERSION,
)  # fmt: skip
WRITTEN = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
    "resolv.conf": "",  # a build's steps find the host's here
    "pip.conf": "",  # and here
    "ld.so.conf": "/usr/local/lib\ninclude /etc/ld.so.conf.d/*.conf\n",
    "bash.bashrc": "",
    "profile": "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n",
    "shells": "/bin/sh\n/bin/bash\n",
}
PACKAGES = ("pip", "setuptools", "wheel", "_distutils_hack", "pkg_resources", "distutils-precedence.pth")
LEFT_OUT = ("test", "tests", "idlelib", "turtledemo", "*.a", "lib2to3")


def key(owner: int) -> str:
    """What the base is made from, as a digest."""
    made_from = [
        FORMAT, owner, sys.version, sys.base_prefix, os.stat(os.path.realpath(sys.executable)).st_mtime_ns,
        *(_digest(Path("/etc") / name) for name in ("ld.so.cache", "debian_version")),
    ]  # fmt: skip
    return hashlib.sha256(repr(made_from).encode()).hexdigest()[:20]


def make(tree: Path) -> None:
    """Fill an empty folder. Blocking, some seconds."""
    for name in FOLDERS + OPEN_FOLDERS:
        (tree / name).mkdir(parents=True)
    for name in OPEN_FOLDERS:
        (tree / name).chmod(0o1777)
    (tree / "root").chmod(0o700)
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if (Path("/usr") / name).is_dir():
            (tree / name).symlink_to(f"usr/{name}")
    (tree / "var/run").symlink_to("/run")
    _make_etc(tree / "etc")
    _make_local(tree / "usr/local")
    (tree / "usr").chmod(0o555)


def _make_etc(etc: Path) -> None:
    for name in COPIED:
        source, target = Path("/etc") / name, etc / name
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        elif source.exists():
            shutil.copy2(source, target)
    for name, text in WRITTEN.items():
        (etc / name).write_text(text)
    (etc / "os-release").symlink_to("../usr/lib/os-release")
    (etc / "localtime").symlink_to("/usr/share/zoneinfo/Etc/UTC")
    (etc / "mtab").symlink_to("/proc/self/mounts")


def _make_local(local: Path) -> None:
    for name in ("bin", "etc", "include", "lib", "sbin", "share"):
        (local / name).mkdir()
    prefix = Path(sys.base_prefix)
    if prefix == Path(
        "/usr"
    ):  # the system's own Python: already there, with all that Debian installed for it
        (local / "bin/python").symlink_to("/usr/bin/python3")
        return
    _copy_library(prefix / "lib" / VERSION, local / "lib" / VERSION)
    if (prefix / "include" / VERSION).is_dir():
        shutil.copytree(prefix / "include" / VERSION, local / "include" / VERSION)
    for library in (prefix / "lib").glob("libpython*.so*"):
        shutil.copy2(library, local / "lib", follow_symlinks=False)
    shutil.copy2(prefix / "bin" / VERSION, local / "bin" / VERSION)
    for name in ("python3", "python"):
        (local / "bin" / name).symlink_to(VERSION)
    for name in ("pip", "pip3"):
        _write_program(local / "bin" / name, f'#!/bin/sh\nexec /usr/local/bin/{VERSION} -m pip "$@"\n')


def _copy_library(library: Path, target: Path) -> None:
    """The standard library with pip beside it, and nothing else that was installed on the host."""
    packages = library / "site-packages"

    def left_out(folder: str, names: list[str]) -> set[str]:
        if Path(folder) == library:
            return shutil.ignore_patterns(*LEFT_OUT)(folder, names) | {"site-packages"}
        return shutil.ignore_patterns("test", "tests", "*.a")(folder, names)

    shutil.copytree(library, target, symlinks=True, ignore=left_out)
    (target / "site-packages").mkdir()
    for found in packages.iterdir() if packages.is_dir() else ():
        if found.name.split("-")[0] in PACKAGES or found.name in PACKAGES:
            copy = shutil.copytree if found.is_dir() else shutil.copy2
            copy(found, target / "site-packages" / found.name)


def _write_program(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
