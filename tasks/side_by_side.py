"""Independent work on a small model, several pieces at once on a CPU.

The operations of a small model are too short to be cut among cores, and a core that other work holds up stops
one piece instead of every operation. A GPU is kept busy by one piece.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def side_by_side(
    function: Callable[[Piece], Result], pieces: Sequence[Piece], device: torch.device
) -> Iterator[Result]:
    """``function`` of every piece, in order; on a CPU as many pieces at once as PyTorch has threads.

    The first error ends the iteration once the pieces under way are done.
    """
    threads = torch.get_num_threads()
    at_once = min(threads, len(pieces)) if device.type == "cpu" else 1
    if at_once <= 1:
        yield from map(function, pieces)
        return
    share = {"initializer": torch.set_num_threads, "initargs": (threads // at_once,)}
    pool = ThreadPoolExecutor(at_once, **share)
    try:
        yield from pool.map(function, pieces)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # a part of the number is the process's, not the thread's
