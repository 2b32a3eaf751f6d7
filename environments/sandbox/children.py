"""Child processes without threads: each is watched through its pidfd, so hundreds of them cost nothing."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping

TOOLS = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}  # the whole environment of host programs that we start

_lifelines: list[int] = []


def lifeline() -> int:
    """The reading end of a pipe that ends when this process has died, whatever it died of."""
    if not _lifelines:
        _lifelines.extend(os.pipe())  # the writing end is never written to, closed or passed on
    return _lifelines[0]


class Exit:
    """The end of any process, a child or not. ``await exit.done`` lasts until it is gone."""

    def __init__(self, pid: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()
        try:
            self._pidfd: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._pidfd = None
            self.done.set_result(None)
            return
        self._loop.add_reader(self._pidfd, self._gone)

    def kill(self) -> None:
        if self._pidfd is not None:
            try:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended and its watcher has not run yet

    def _gone(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = None
        if not self.done.done():
            self.done.set_result(None)


class Child(Exit):
    """A child process in a session of its own, without standard input unless one is given."""

    def __init__(
        self,
        arguments: list[str],
        *,
        stdin: int = subprocess.DEVNULL,
        output: int = subprocess.DEVNULL,
        stderr: int | None = None,
        pass_fds: Iterable[int] = (),
        cwd: str = "/",
        environment: Mapping[str, str] = TOOLS,
    ) -> None:
        self._process = subprocess.Popen(
            arguments, stdin=stdin, stdout=output,
            stderr=output if stderr is None else stderr, pass_fds=tuple(pass_fds),
            env=environment, start_new_session=True, cwd=cwd,
        )  # fmt: skip
        self.pid = self._process.pid
        super().__init__(self.pid)

    async def wait(self) -> int:
        """The exit status, negative for a signal."""
        await asyncio.shield(self.done)
        return self._process.wait()
