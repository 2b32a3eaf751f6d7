"""What the server takes on: sizes, times, and how many sequences at once."""

import math
from dataclasses import dataclass

from model.inference.server.errors import ApiError


@dataclass(frozen=True)
class Limits:
    """Everything that a client could otherwise exhaust."""

    body_bytes: int = 4 << 20
    prompt_tokens: int | None = None  # None: what the model's context holds
    max_tokens: int | None = None  # sampled tokens of one sequence; None: what the context holds
    sequences: int = 256  # waiting and running: prompts times choices
    connections: int = 900  # below the usual limit of 1024 open files
    receive_seconds: float = 30.0  # for a request to arrive
    stall_seconds: float = 30.0  # with data to send and a client that does not read
    switch_seconds: float = 60.0  # waiting for running requests before another checkpoint is loaded
    drain_seconds: float = 30.0  # for running requests to end after SIGTERM

    def __post_init__(self) -> None:
        """Raises ``ValueError`` for a limit under which nothing could be answered."""
        for name, value in self.__dict__.items():
            if value is None or 0 < value < math.inf or (value == 0 and name == "drain_seconds"):
                continue
            raise ValueError(f"the server's limit {name} is {value}: give a number above 0")


class Gate:
    """Counts the sequences inside and refuses what would be too many."""

    def __init__(self, capacity: int):
        self._capacity = capacity
        self.inside = 0

    def enter(self, sequences: int) -> None:
        """Raises ``ApiError``: 422 for a request that could never enter, 429 while the server is full."""
        if sequences > self._capacity:
            raise ApiError(
                422, f"the request asks for {sequences} sequences; {self._capacity} is the most", param="n"
            )
        if self.inside + sequences > self._capacity:
            raise ApiError(
                429, "The server is busy with as many sequences as it takes; try again", code="busy"
            )
        self.inside += sequences

    def leave(self, sequences: int) -> None:
        self.inside -= sequences
