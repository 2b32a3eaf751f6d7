"""Files of a sandbox, written and read from outside: no program of the sandbox is run or trusted for it.

Every path is resolved by ``openat2`` with the sandbox's root as the root (Linux 5.6), so a link inside,
absolute or with any number of ``..``, never leads out, also while processes inside move things about."""

import contextlib
import ctypes
import errno
import os
import stat
from pathlib import Path

from environments.sandbox.files import Entry
from environments.sandbox.removal import FOLDER, allow, remove

OPENAT2 = 437  # the same number on every architecture
NO_MAGIC_LINKS, IN_ROOT = 0x02, 0x10
IN_THE_WAY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES)
RETRIES = 50  # a rename at the same moment makes openat2 ask for another try

_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("flags", "mode", "resolve")]


class Tree:
    """Blocking: call its methods in a thread. ``owner`` is the user who owns what lies inside."""

    def __init__(self, root: Path, owner: int) -> None:
        self._root = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._owner = owner

    def close(self) -> None:
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def write(self, path: str, content: bytes, mode: int) -> None:
        with self._acting(), self._parent(path) as (folder, name):
            remove(folder, name)
            _make(folder, name, Entry(name, mode, content))

    def read(self, path: str, limit: int) -> bytes:
        with self._acting():
            try:
                descriptor = self._open_file(path)
            except OSError as error:
                raise FileNotFoundError(f"{path}: {error.strerror}") from None
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise FileNotFoundError(f"{path} is no regular file")
                with os.fdopen(descriptor, "rb", closefd=False) as file:
                    return file.read(limit)
            finally:
                os.close(descriptor)

    def _open_file(self, path: str) -> int:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            return self._open(path, flags)
        except PermissionError:
            self._unlock(path)
            return self._open(path, flags)

    def _unlock(self, path: str) -> None:
        """Give the owner all rights on the way to a path: they are his, and modes must not hide a result."""
        parts = _parts(path)
        for depth in range(len(parts)):
            descriptor = self._open("/".join(parts[: depth + 1]), os.O_PATH | os.O_CLOEXEC)
            try:
                allow(descriptor)
            finally:
                os.close(descriptor)

    def upload(self, entries: list[Entry], target: str) -> None:
        """Make ``target`` a folder that holds the entries and nothing else."""
        with self._acting(), self._parent(target) as (parent, name):
            remove(parent, name)
            os.mkdir(name, 0o755, dir_fd=parent)
        self.merge(entries, target)

    def make_folder(self, path: str) -> None:
        with self._acting():
            os.close(self._folder(_parts(path)))

    def merge(self, entries: list[Entry], target: str) -> None:
        """Put the entries into a folder, beside what is there."""
        with self._acting():
            modes = []
            for entry in entries:
                path = f"{target}/{entry.path}"
                if entry.content is None and entry.link is None:
                    os.close(self._folder(_parts(path)))
                    modes.append((path, entry.mode))
                    continue
                with self._parent(path) as (folder, name):
                    remove(folder, name)
                    _make(folder, name, entry)
            for path, mode in reversed(modes):  # a folder that may not be written gets that mode last
                descriptor = self._folder(_parts(path))
                try:
                    os.chmod(f"/proc/self/fd/{descriptor}", mode)
                finally:
                    os.close(descriptor)

    def add(self, source: Entry, entries: list[Entry], target: str) -> None:
        """Docker's COPY of one source: the entries of a folder go into ``target``; a file becomes it, or goes
        into it where it is a folder or ends in a slash.
        """
        if source.content is None:
            if target.strip("/"):
                self.make_folder(target)
            self.merge(entries, target)
        else:
            inside = target.endswith("/") or self._is_folder(target)
            path = f"{target.rstrip('/')}/{source.path}" if inside else target
            self.write(path, source.content, source.mode)

    def _is_folder(self, path: str) -> bool:
        with self._acting():
            try:
                os.close(self._open(path, FOLDER))
            except OSError:
                return False
            return True

    @contextlib.contextmanager
    def _parent(self, path: str):
        """The open folder above a path (made where it is missing) and the last name."""
        *above, name = _parts(path)
        folder = self._folder(above)
        try:
            yield folder, name
        finally:
            os.close(folder)

    def _folder(self, parts: list[str]) -> int:
        """Open a folder, making what is missing, replacing what is in the way, unlocking what is closed."""
        folder = self._open("/", FOLDER)
        for depth, name in enumerate(parts):
            try:
                try:
                    below = self._open("/".join(parts[: depth + 1]), FOLDER)
                except OSError as error:
                    if error.errno not in IN_THE_WAY:
                        raise
                    remove(folder, name)
                    os.mkdir(name, 0o755, dir_fd=folder)
                    below = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            finally:
                os.close(folder)
            folder = below
            if parts[0] != "usr":  # which is the host's, mounted over an empty folder
                allow(folder)
        return folder

    def _open(self, path: str, flags: int) -> int:
        how = _How(flags, 0, NO_MAGIC_LINKS | IN_ROOT)
        for _ in range(RETRIES):
            descriptor = _libc.syscall(
                OPENAT2, self._root, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)
            )
            if descriptor >= 0:
                return descriptor
            if ctypes.get_errno() != errno.EAGAIN:
                break
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)

    @contextlib.contextmanager
    def _acting(self):
        """Act on files as the owner of the sandbox (this thread alone), so that what is made is his."""
        if os.geteuid() == self._owner:
            yield
            return
        _libc.setfsgid(self._owner)
        _libc.setfsuid(self._owner)
        try:
            yield
        finally:
            _libc.setfsuid(os.geteuid())
            _libc.setfsgid(os.getegid())


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or "\0" in path:
        raise ValueError(f"{path!r} is no plain absolute path of a sandbox")
    return parts


def _make(folder: int, name: str, entry: Entry) -> None:
    if entry.link is not None:
        os.symlink(entry.link, name, dir_fd=folder)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(entry.content)
        os.fchmod(file.fileno(), entry.mode)
