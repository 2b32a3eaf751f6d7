"""``decode.cpp`` as a shared library: compiled at its first use on a machine, then kept in the user's cache.

A C++ compiler (g++ 12 or newer, or clang with OpenMP) is never required: without one the engine decodes
through torch.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("decode.cpp")
HEADER = Path(__file__).with_name("integers.h")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-shared",
         "-fPIC")  # fmt: skip


class NoNativeCode(ValueError):
    """Decoding in native code is not to be had here, and why."""


# What decode.cpp needs of a compiler beside the flags.
PROBE = """#include <omp.h>
#if !__has_builtin(__builtin_shufflevector)
#error "no shuffles of vectors"
#endif
"""


def compiler() -> str | None:
    """The C++ compiler that is able to: ``CXX`` where it is set, else the first that is installed."""
    names = (os.environ.get("CXX"), "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name)) and _able(found)), None)


def _able(program: str) -> bool:
    command = [program, *FLAGS, "-fsyntax-only", "-x", "c++", "-"]
    return subprocess.run(command, input=PROBE, text=True, capture_output=True).returncode == 0


@cache
def library() -> ctypes.CDLL:
    """The compiled library. Raises ``NoNativeCode`` where there is no compiler, or it fails, or what it made
    cannot be loaded.
    """
    program = compiler()
    if program is None:
        raise NoNativeCode(
            "decoding in native code needs a C++ compiler: install g++ 12 or newer, or set CXX"
        )
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glm5-pipeline"
    try:
        file = home / f"decode-{_identity(program)}.so"
        if not file.exists():
            _compile(program, file)
        return ctypes.CDLL(str(file))
    except OSError as error:
        raise NoNativeCode(f"native code cannot be kept in {home} or loaded from there: {error}") from error


def _compile(program: str, file: Path) -> None:
    """Into a folder beside the file first, so that no half-made one is ever loaded."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        done = subprocess.run([program, *FLAGS, SOURCE, "-o", made], capture_output=True, text=True)
        if done.returncode:
            raise NoNativeCode(f"{program} cannot compile {SOURCE.name}: {done.stderr.strip()[-500:]}")
        made.rename(file)


def _identity(program: str) -> str:
    """Of the source, the compiler and the processor, for whose instructions it is compiled."""
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    info = Path("/proc/cpuinfo")
    flags = next(
        (line for line in info.read_text().splitlines() if line.startswith(("flags", "Features"))), ""
    )
    words = (SOURCE.read_text(), HEADER.read_text(), *FLAGS, version, platform.machine(), flags)
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:20]
