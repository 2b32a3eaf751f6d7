"""Layers of images on disk, named by what they were made from; the same layer is made once, whoever needs it.

``<cache>/layers/<key>/tree`` is what the layer adds (an overlay's upper folder), ``chain`` the keys of a
whole image with the lowest last. A layer is made in a draft folder that its maker holds locked, then renamed:
a killed build leaves a draft that the next start removes, never half a layer."""

import contextlib
import fcntl
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

DRAFT = "draft-"


class Layers:
    def __init__(self, cache: Path, owner: int) -> None:
        self.folder = cache.resolve() / "layers"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.owner = owner
        self._sweep()

    def has(self, key: str) -> bool:
        return (self.folder / key).is_dir()

    def chain(self, key: str) -> list[str]:
        """The keys of an image's layers, the topmost first."""
        return (self.folder / key / "chain").read_text().split()

    @contextlib.contextmanager
    def draft(self) -> Iterator[Path]:
        """A new folder with an empty ``tree`` and ``work``, gone afterwards unless it was published."""
        draft = self.folder / f"{DRAFT}{uuid.uuid4().hex}"
        draft.mkdir(mode=0o755)
        lock = os.open(draft, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for name in ("tree", "work"):
                (draft / name).mkdir(mode=0o755)
                self.give(draft / name)
            yield draft
        finally:
            os.close(lock)
            remove(draft)

    def publish(self, draft: Path, key: str, below: list[str]) -> None:
        """Make a draft the layer of that key, unless someone else just did."""
        remove(draft / "work")
        (draft / "chain").write_text(" ".join([key, *below]))
        with contextlib.suppress(FileExistsError, OSError):
            draft.rename(self.folder / key)
        if not self.has(key):
            raise OSError(f"the layer {key} cannot be put into {self.folder}")

    def give(self, path: Path) -> None:
        """Make the sandboxes' user the owner."""
        if os.geteuid() != self.owner:
            os.chown(path, self.owner, self.owner, follow_symlinks=False)

    def give_all(self, tree: Path) -> None:
        self.give(tree)
        for folder, names, files in os.walk(tree):
            for name in names + files:
                self.give(Path(folder) / name)

    def _sweep(self) -> None:
        for draft in self.folder.glob(DRAFT + "*"):
            with contextlib.suppress(OSError):
                lock = os.open(draft, os.O_RDONLY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its maker lives
                    remove(draft)
                finally:
                    os.close(lock)


def remove(tree: Path) -> None:
    """Remove a folder of ours, also where modes forbid it (an overlay's work folder has none)."""
    if not tree.is_dir():
        return
    for folder, names, _ in os.walk(tree):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path) and stat.S_IMODE(os.lstat(path).st_mode) & 0o700 != 0o700:
                os.chmod(path, 0o700)
    shutil.rmtree(tree, ignore_errors=True)
