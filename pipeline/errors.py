"""The one exception whose text is meant for the person who runs a command."""

import errno
import os
import sys
from collections.abc import Callable

FULL = (errno.ENOSPC, errno.EDQUOT)
CLOSED = (
    errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
)  # fmt: skip


class UserError(Exception):
    """Bad input or a machine that cannot go on: one sentence that says what, where and what to do.

    Commands print it without a traceback and exit with status 1. Any other exception is a fault of this
    project and keeps its traceback.
    """


def run_command(main: Callable[[], int | None]) -> None:
    """Run a command's ``main`` and turn ``UserError`` and Ctrl-C into a sentence and an exit status."""
    try:
        status = main() or 0
        sys.stdout.flush()
        sys.exit(status)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except BrokenPipeError:  # whoever reads, like `head`, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        place = error.filename or "this folder"
        if error.errno in FULL:
            sentence = f"the disk of {place} is full: free some space and start again"
        elif error.errno in CLOSED:
            sentence = (
                f"{place} cannot be used ({error.strerror}): mend that, or set GLM5_ROOT to another folder"
            )
        else:
            raise
        print(f"error: {sentence}", file=sys.stderr, flush=True)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept", file=sys.stderr, flush=True)
        sys.exit(130)
