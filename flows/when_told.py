"""A command of Prefect, loaded while its server still starts: ``python -m flows.when_told worker start ...``.

It goes on when it reads a line, and ends when its standard input closes without one: who started it ended.
"""

import os
import sys

import prefect.flows  # what takes its time to load
import prefect.workers.process  # noqa: F401
from prefect.cli import app

if __name__ == "__main__":
    if not sys.stdin.readline():
        sys.exit("not told to go on: who started this has ended")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    app()
