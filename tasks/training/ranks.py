"""The processes of a data-parallel run. Each holds the whole model and computes its share of every step.

With one process, the usual case, each function gives back what it was given. Names of ``torchrun``: a process
has a rank, from 0, and the number of all is the world's size.
"""

import os
from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.distributed as dist

from pipeline.errors import UserError

Piece = TypeVar("Piece")
Value = TypeVar("Value")


class Parted(UserError):
    """Another process of the run ended, so that this one cannot go on."""

    def __init__(self) -> None:
        super().__init__("another process of this run has ended: its own message stands above")


def started_by_torchrun() -> bool:
    """Whether this process is one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def group() -> dist.ProcessGroup | None:
    """Of all processes, for collectives; None with one."""
    return dist.group.WORLD if world_size() > 1 else None


def pick_device() -> torch.device:
    """The card of this process, or the CPU. Raises ``UserError`` where cards are fewer than processes."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if not started_by_torchrun():
        return torch.device("cuda")
    number, cards = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if number >= cards:
        raise UserError(f"process {number + 1} of this host finds {cards} cards: start at most {cards}")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def connect() -> None:
    """Meet the other processes. Objects travel over gloo, a card's tensors over NCCL."""
    pick_device()  # says what is wrong before anyone waits
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")


def share(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """Every ``world_size``-th piece, from this process's rank on."""
    return pieces[rank() :: world_size()]


def gather(value: Value) -> list[Value]:
    """What each process gave, in their order: the same list everywhere. Raises ``Parted``."""
    if world_size() == 1:
        return [value]
    values: list = [None] * world_size()
    try:
        dist.all_gather_object(values, value)
    except RuntimeError as error:
        raise Parted from error
    return values


def add_up(tensors: Sequence[torch.Tensor]) -> None:
    """Replace each tensor by its sum over the processes: the same bits everywhere. Raises ``Parted``."""
    if world_size() == 1:
        return
    try:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()
    except RuntimeError as error:
        raise Parted from error
