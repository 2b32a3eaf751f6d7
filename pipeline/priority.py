"""How far a process yields to others on the same cores."""

import contextlib
import os
from pathlib import Path

AUTOGROUP = Path("/proc/self/autogroup")


def give_way(niceness: int) -> None:
    """Raise the niceness of this process, the leader of a session of its own.

    Where Linux schedules each session as a group, niceness counts inside the group alone: the group's is
    raised too.
    """
    os.nice(niceness)
    with contextlib.suppress(OSError):
        AUTOGROUP.write_text(str(niceness))
