"""A training stage in several processes, one a card: data parallel, Muon's work shared (paper section 2.4.1).

    GLM5_PROCESSES=8 python -m tasks.sft --recipe small
    torchrun --nproc-per-node 8 -m tasks.sft --recipe small

Rank 0 is the stage as it is with one process: it decides whether there is anything to do, keeps the scratch
folder and publishes. The others are told what it was given and compute with it.
"""

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch.distributed as dist

from pipeline.errors import UserError, run_command
from pipeline.parent import parents_death
from pipeline.stage import Context, run_stage
from tasks.training import ranks

PROCESSES = "GLM5_PROCESSES"
SECONDS_TO_SAVE = "60"  # between SIGTERM, on which the loop saves a checkpoint, and SIGKILL
SECONDS_FOR_RANK_0 = 5.0  # in which it says what all of them met

Run = Callable[[Context], dict[str, float]]


def run_training_stage(name: str, run: Run) -> None:
    """The command line of a training stage, in as many processes as are asked for; never returns."""
    if ranks.started_by_torchrun():
        parents_death(signal.SIGTERM)()
        run_command(lambda: _take_part(name, run))
    elif os.environ.get(PROCESSES, "1") != "1":
        run_command(_launch)
    else:
        run_stage(name, run)


def _launch() -> int:
    """This command again, in several processes of this host; the exit status is that of the first to fail."""
    # Slow to import, and most runs have one process.
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable()  # the processes themselves say what is wrong
    processes = _asked_for()
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SECONDS_TO_SAVE)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=processes, max_restarts=0, run_id=str(os.getpid()),
        rdzv_backend="c10d", rdzv_endpoint="localhost:0", local_addr="localhost",
    )  # fmt: skip
    try:
        elastic_launch(config, sys.executable)(*sys.orig_argv[1:])
    except SignalException:
        return 1
    except ChildFailedError as error:
        failures = error.failures
        status = failures[min(failures)].exitcode
        if status < 0:  # whoever started this goes by the signal: a killed stage is worth another try
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        return status
    return 0


def _asked_for() -> int:
    text = os.environ[PROCESSES]
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise UserError(f"{PROCESSES} is {text!r}: give the number of processes, a whole number from 1")
    return int(text)


def _take_part(name: str, run: Run) -> None:
    ranks.connect()
    try:
        _lead(name, run) if ranks.rank() == 0 else _follow(run)
    finally:  # or its threads abort the process as Python ends
        dist.destroy_process_group()


def _lead(name: str, run: Run) -> None:
    told = False

    def tell_and_run(context: Context) -> dict[str, float]:
        nonlocal told
        told = True
        _tell(replace(context, progress=None, metrics=None))
        return run(context)

    try:
        run_stage(name, tell_and_run)
    finally:
        if not told:  # up to date, or it cannot be run
            _tell(None)


def _follow(run: Run) -> None:
    context = _tell(None)
    if context is None:
        return
    context.progress = context.metrics = _Nobody()
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            run(context)
    except SystemExit:
        sys.exit(1)  # stopped by a signal, as rank 0 says
    except UserError:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(SECONDS_FOR_RANK_0)  # it met the same: this process is ended before it says so again
        raise


def _tell(context: Context | None) -> Context | None:
    """What rank 0 gives, at every rank."""
    box = [context]
    dist.broadcast_object_list(box)
    return box[0]


class _Nobody:
    """Progress and metrics of a process that reports none."""

    def update(self, *_: object, **__: object) -> None: ...

    def log(self, *_: object) -> None: ...

    def rewind(self, *_: object) -> None: ...
