"""The one exception whose text is meant for the person who runs a command."""

import errno
import os
import sys
from collections.abc import Callable


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
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        place = error.filename or "this folder"
        print(
            f"error: the disk of {place} is full: free some space and start again",
            file=sys.stderr,
            flush=True,
        )
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept", file=sys.stderr, flush=True)
        sys.exit(130)
