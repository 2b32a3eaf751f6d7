"""An image with pytest from the packages of this Python instead of the index."""

import shutil
import sys
from pathlib import Path

import pytest

FOLDERS = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py.py")


def pytest_lines(context: Path) -> str:
    """Copy pytest into an image's context; the lines of the Dockerfile that install it."""
    packages = Path(pytest.__file__).parents[1]
    for name in FOLDERS:
        source, target = packages / name, context / "packages" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"FROM python:{version}\nCOPY packages /usr/local/lib/python{version}/site-packages/\n"
