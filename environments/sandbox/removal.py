"""Removing what a sandbox made: whatever its modes, however deep, and never through a link.

Folders are given as descriptors opened with O_PATH, and all that is removed lies below one.
"""

import errno
import os
import stat
import uuid

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def allow(descriptor: int) -> None:
    """Add the owner's rights to a file or folder opened with O_PATH."""
    status = os.fstat(descriptor)
    wanted = 0o700 if stat.S_ISDIR(status.st_mode) else 0o400
    if not stat.S_ISLNK(status.st_mode) and status.st_mode & wanted != wanted:
        os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(status.st_mode) | wanted)


def remove(folder: int, name: str) -> None:
    """Remove a file, a link or a whole folder; nothing where there is none. Links are never followed."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        _remove_folder(folder, name)


def _remove_folder(above: int, name: str) -> None:
    """Folders are moved up to the top before they are emptied, so that no depth is too deep."""
    top = _enter(above, name)
    try:
        while folders := _clear(top, top):
            for folder in folders:
                below = _enter(top, folder)
                try:
                    _clear(below, top)
                finally:
                    os.close(below)
                os.rmdir(folder, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=above)


def _clear(folder: int, top: int) -> list[str]:
    """Remove the files of a folder and move its folders to the top; the names of those that are there."""
    folders = []
    with os.scandir(folder) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in names:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
        elif folder == top:
            folders.append(name)
        else:
            _move(folder, name, top)
    return folders


def _move(folder: int, name: str, top: int) -> None:
    try:
        os.rename(name, f"{name[:100]}-{uuid.uuid4().hex}", src_dir_fd=folder, dst_dir_fd=top)
    except OSError as error:
        if error.errno != errno.EXDEV:  # a folder of the image cannot be moved, nor is it deep
            raise
        _remove_folder(folder, name)


def _enter(above: int, name: str) -> int:
    path = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=above)
    try:
        allow(path)
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    finally:
        os.close(path)
