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

SET_BY_TORCHRUN = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

Piece = TypeVar("Piece")
Value = TypeVar("Value")


def several() -> bool:
    """Whether this process was started as one of several, as ``torchrun`` does it."""
    return os.environ.get("WORLD_SIZE", "1") not in ("", "1")


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def group() -> dist.ProcessGroup | None:
    """Of all processes, for collectives; None with one."""
    return dist.group.WORLD if world_size() > 1 else None


def pick_device() -> torch.device:
    """The card of this process, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return (
        torch.device("cuda", torch.cuda.current_device()) if dist.is_initialized() else torch.device("cuda")
    )


def connect() -> None:
    """Meet the other processes; each takes a card of its own. Objects travel over gloo, a card's tensors over
    NCCL. Raises ``UserError`` where the host has too few cards, or the surroundings name no others.
    """
    if absent := [name for name in SET_BY_TORCHRUN if not os.environ.get(name)]:
        raise UserError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']!r} and {', '.join(absent)} not set: start the "
            "processes with torchrun, or unset WORLD_SIZE"
        )
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return
    number, cards = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if number >= cards:
        raise UserError(f"there are {cards} cards for the processes of this host: start at most {cards}")
    torch.cuda.set_device(number)
    dist.init_process_group("cpu:gloo,cuda:nccl")


def share(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """Every ``world_size``-th piece, from this process's rank on."""
    return pieces[rank() :: world_size()]


def gather(value: Value) -> list[Value]:
    """What each process gave, in their order: the same list everywhere."""
    if world_size() == 1:
        return [value]
    values: list = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def add_up(tensors: Sequence[torch.Tensor]) -> None:
    """Replace each tensor by its sum over the processes: the same bits everywhere."""
    if world_size() > 1:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()
