"""What a command writes: head and tail are kept, the middle is counted and dropped, the pipe never blocks."""

import asyncio
import os

CHUNK = 65_536
PAUSE = 0.002  # seconds between two reads once output is dropped: a flood costs us little, 32 MB/s at most


class Kept:
    """The first and the last half of what comes, within a limit."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head, self._tail = bytearray(), bytearray()
        self._seen = 0

    @property
    def dropped(self) -> int:
        return max(0, self._seen - 2 * self._half)

    def add(self, data: bytes) -> None:
        self._seen += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > self._half:
            del self._tail[: len(self._tail) - self._half]

    def text(self) -> str:
        note = f"\n[{self.dropped} bytes left out]\n".encode() if self.dropped else b""
        return (bytes(self._head) + note + bytes(self._tail)).decode(errors="replace")


class Output:
    """Reads a pipe until it ends or ``close``. Takes ownership of the descriptor."""

    def __init__(self, readable: int, limit: int) -> None:
        os.set_blocking(readable, False)
        self._fd: int | None = readable
        self._kept = Kept(limit)
        self._ended = False  # what comes after the command's end is not kept
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._loop.add_reader(readable, self._read)

    @property
    def dropped(self) -> int:
        return self._kept.dropped

    def finish(self) -> str:
        """The command has ended: what it wrote. Processes that it left behind go on writing to nobody."""
        for _ in range(16):  # what lies in the pipe is the command's; a background flood has no end
            if self._fd is None or not self._take():
                break
        self._ended = True
        return self._kept.text()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    @property
    def open(self) -> bool:
        return self._fd is not None

    def _read(self) -> None:
        self._take()
        if self._fd is not None and (self.dropped or self._ended):
            self._loop.remove_reader(self._fd)
            self._timer = self._loop.call_later(PAUSE, self._resume)

    def _resume(self) -> None:
        self._timer = None
        if self._fd is not None:
            self._loop.add_reader(self._fd, self._read)

    def _take(self) -> bool:
        """Read once; False when nothing is there or the pipe has ended."""
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        if not self._ended:
            self._kept.add(data)
        return True
