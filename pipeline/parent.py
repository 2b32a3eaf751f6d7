"""Ending with one's parent: who is killed leaves its children alive, unless they asked for a signal."""

import ctypes
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def parents_death(number: int) -> Callable[[], None]:
    """What asks Linux, in the process that calls it, for this signal when its parent dies.

    A function of its own, as a ``preexec_fn`` must not load a library: another thread may have held a lock
    when the process forked. Elsewhere than on Linux it asks for nothing.
    """
    if sys.platform != "linux":
        return lambda: None
    library = ctypes.CDLL(None)

    def ask() -> None:
        library.prctl(_PR_SET_PDEATHSIG, number)

    return ask
