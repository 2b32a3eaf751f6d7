"""Where weights lie that engines of this machine are to read: in memory, where there is a folder for that."""

import os
import shutil
from pathlib import Path

MEMORY, PREFIX = Path("/dev/shm"), "glm5-weights-"


def shared_folder(scratch: Path) -> Path:
    """This process's own; in ``scratch`` where the machine has no folder in memory."""
    if not (MEMORY.is_dir() and os.access(MEMORY, os.W_OK)):
        return scratch / "weights"
    return MEMORY / f"{PREFIX}{os.getpid()}"


def sweep() -> None:
    """Remove the weights of runs that were killed."""
    for folder in MEMORY.glob(f"{PREFIX}*"):
        if not Path(f"/proc/{folder.name.removeprefix(PREFIX)}").exists():
            shutil.rmtree(folder, ignore_errors=True)
