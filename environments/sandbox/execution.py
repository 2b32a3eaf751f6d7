"""One command in a container: started, its output read until it ends or its time is over."""

import secrets
import socket
import struct
import time
from dataclasses import dataclass

import docker
import docker.errors

from environments.sandbox.engine import one_line
from environments.sandbox.output import Kept

START_SECONDS = 60.0  # until the command begins; its own time counts from then
CANNOT_RUN = 126
NOT_RUNNING = "the sandbox's processes were ended"
NO_EXEC = "No such exec instance"

# Reads a secret word, a folder and the command, each up to a zero byte, says the word, runs the command and
# says the word again with the exit status. So the end of a command is known while what it left behind holds
# its output open, standard output and error stay in order, and a long command is bash's own error.
# Bash with -p reads no file that BASH_ENV names.
WRAPPER = """\
IFS= read -r -d '' _word; IFS= read -r -d '' _folder; IFS= read -r -d '' _command
exec </dev/null 2>/dev/null
printf %s "$_word"
if builtin cd -- "$_folder"; then
  unset OLDPWD SHLVL
  /bin/bash -c "$_command" bash 2>&1
else
  printf 'cd: %s: no such folder\\n' "$_folder"; (exit 126)
fi
printf '%s %d\\n' "$_word" $?
"""


@dataclass(frozen=True)
class Ended:
    """``returncode`` is None where all processes of the container were killed.

    Where it has not ``begun`` the engine started no process for it, and ``output`` says why.
    """

    returncode: int | None
    output: str
    dropped_bytes: int = 0
    timed_out: bool = False
    begun: bool = True


class Execution:
    """Used once. ``close`` may be called from another thread and makes ``run`` return."""

    def __init__(self, api: docker.APIClient, container: str, output_bytes: int) -> None:
        self._api, self._container = api, container
        self._kept = Kept(output_bytes)
        self._word = secrets.token_hex(16).encode()
        self._socket: socket.socket | None = None
        self._closed = False

    def run(self, command: str, folder: str, environment: dict[str, str], user: str, seconds: float) -> Ended:
        """Blocks."""
        try:
            identity = self._api.exec_create(
                self._container, ["/bin/bash", "-pc", WRAPPER], stdin=True, environment=environment,
                user=user, workdir="/",
            )["Id"]  # fmt: skip
            stream = self._api.exec_start(
                identity, socket=True
            )  # its owner closes the connection when it goes
        except docker.errors.APIError as error:
            return self._not_started(error)
        self._socket = getattr(stream, "_sock", stream)
        try:
            if self._closed:
                return Ended(None, "")
            return self._follow(identity, [self._word.decode(), folder, command], seconds)
        finally:
            self.close()
            stream.close()
            self._socket.close()

    def close(self) -> None:
        self._closed = True
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other end was first

    def _not_started(self, error: docker.errors.APIError) -> Ended:
        explanation = str(error.explanation)
        # An engine forgets the commands of a container that ends.
        if error.status_code == 409 or "is not running" in explanation or NO_EXEC in explanation:
            return Ended(None, NOT_RUNNING, begun=False)
        if "OCI runtime exec failed" in explanation or error.status_code == 400:
            # There is no bash any more, or no memory or process left for it.
            return Ended(CANNOT_RUN, f"the command cannot be run: {one_line(explanation)}", begun=False)
        raise error

    def _follow(self, identity: str, words: list[str], seconds: float) -> Ended:
        given = "".join(f"{word}\0" for word in words).encode(errors="surrogateescape")
        frames = _Frames(self._socket)
        try:
            frames.deadline = time.monotonic() + START_SECONDS
            self._socket.sendall(given)
            if not self._began(frames):
                return self._never_began(identity)
            frames.deadline = time.monotonic() + seconds
            returncode = self._read_to_end(frames)
        except TimeoutError:
            return Ended(None, self._kept.text(), self._kept.dropped, True)
        if returncode is None:
            returncode = self._told(identity)["ExitCode"]
        return Ended(returncode, self._kept.text(), self._kept.dropped)

    def _began(self, frames: "_Frames") -> bool:
        start = b""
        while not start.startswith(self._word):
            if not (data := frames.read()):
                self._kept.add(start)
                return False
            start += data
        self._rest = start[len(self._word) :]
        return True

    def _never_began(self, identity: str) -> Ended:
        """What was said instead is the engine's word on why, where it started no process."""
        running = self._api.inspect_container(self._container)["State"]["Running"]
        told = self._told(identity)
        if running and told["Pid"] and told["ExitCode"] is not None:
            return Ended(told["ExitCode"] or CANNOT_RUN, self._kept.text())
        said = self._kept.text()
        return Ended(CANNOT_RUN if said else None, said or NOT_RUNNING, begun=False)

    def _told(self, identity: str) -> dict:
        """What the engine knows of the command: nothing where its container has ended since."""
        try:
            return self._api.exec_inspect(identity)
        except docker.errors.NotFound as error:
            if NO_EXEC not in str(error.explanation):
                raise
            return {"Pid": 0, "ExitCode": None}

    def _read_to_end(self, frames: "_Frames") -> int | None:
        """Keep the output; the exit status, or None where the output ends without one."""
        held = self._rest
        try:
            while True:
                start = held.find(self._word)
                if start >= 0 and b"\n" in held[start:]:
                    status = held[start:].split(b"\n", 1)[0].removeprefix(self._word)
                    held = held[:start]
                    return int(status) if status.strip().isdigit() else None
                if start < 0:
                    safe = max(0, len(held) - len(self._word))
                    self._kept.add(held[:safe])
                    held = held[safe:]
                if not (data := frames.read()):
                    return None
                held += data
        finally:
            self._kept.add(held)


class _Frames:
    """The content of Docker's frames (a byte for the stream, three of nothing, four for the length)."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.deadline = 0.0
        self._left = 0  # of the frame that is being read

    def read(self) -> bytes:
        """The next bytes; none at the end. Raises ``TimeoutError`` at the deadline."""
        while self._left == 0:
            header = b""
            while len(header) < 8:
                if not (data := self._receive(8 - len(header))):
                    return b""
                header += data
            (self._left,) = struct.unpack(">xxxxL", header)
        data = self._receive(min(self._left, 65_536))
        self._left -= len(data)
        return data

    def _receive(self, size: int) -> bytes:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        try:
            return self._connection.recv(size)
        except ConnectionError:
            return b""
