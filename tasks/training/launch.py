"""A training stage in several processes, one a card: data parallel, Muon's work shared (paper section 2.4.1).

    GLM5_PROCESSES=2 python -m tasks.sft --recipe small
    torchrun --nproc-per-node 2 -m tasks.sft --recipe small

Rank 0 is the stage as it is with one process: it decides whether there is anything to do, keeps the scratch
folder and publishes. With ``GLM5_PROCESSES`` it also starts the others, once there is something to do. They
are told what it was given, compute with it, and end with it.
"""

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist

from pipeline.errors import UserError
from pipeline.parent import parents_death
from pipeline.stage import Context, run_stage
from tasks.training import ranks

PROCESSES = "GLM5_PROCESSES"
HOST = "127.0.0.1"
SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_FOR_THE_OTHER = 5.0  # in which the process that a fault comes from tells of it and ends
PARTED = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")  # gloo's words

Run = Callable[[Context], dict[str, float]]


def run_training_stage(name: str, run: Run) -> None:
    """The command line of a training stage, in as many processes as are asked for; never returns."""
    if not ranks.several() and os.environ.get(PROCESSES, "1") in ("", "1"):
        run_stage(name, run)
    _end_together(lambda: _take_part(name, run))


def _take_part(name: str, run: Run) -> None:
    told, over = False, threading.Event()

    @functools.wraps(run)
    def with_the_others(context: Context) -> dict[str, float]:
        nonlocal told
        told = True
        if not ranks.several():
            _start_others(context, over)
        if ranks.world_size() > 1:
            _tell(replace(context, progress=None, metrics=None))
        values = run(context)
        over.set()
        return values

    if ranks.several():
        ranks.connect()
        if ranks.rank() > 0:
            _follow(run)
    try:
        run_stage(name, with_the_others)
    finally:
        if not told and ranks.world_size() > 1:  # up to date, or it cannot be run
            _tell(None)


def _start_others(context: Context, over: threading.Event) -> None:
    """The other processes of this host: this command again, with what ``torchrun`` would tell it."""
    processes = _wanted(context)
    if processes == 1:
        return
    threads = max(1, torch.get_num_threads() // processes)
    torch.set_num_threads(threads)
    meeting = socket.create_server((HOST, 0))
    port = meeting.getsockname()[1]
    # The store of this process's group is the same one, which would listen on every interface by itself.
    store = dist.TCPStore(  # noqa: F841  it lives until the group has it
        HOST, port, is_master=True, multi_tenant=True, master_listen_fd=meeting.detach()
    )
    shared = {
        "MASTER_ADDR": HOST, "MASTER_PORT": str(port), "WORLD_SIZE": str(processes),
        "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": str(threads),
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # torchrun's, where it started this one process
    }  # fmt: skip
    os.environ |= shared | {"RANK": "0", "LOCAL_RANK": "0"}
    others = [_start(rank) for rank in range(1, processes)]
    threading.Thread(target=_watch, args=(context.stage, others, over), daemon=True).start()
    ranks.connect()


def _start(rank: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]], env=os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=parents_death(signal.SIGKILL),
    )  # fmt: skip


def _wanted(context: Context) -> int:
    """As many processes as are asked for and have a micro-batch of every step."""
    text, section, stage = os.environ[PROCESSES], context.section, context.stage
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise UserError(f"{PROCESSES} is {text!r}: give the number of processes, a whole number from 1")
    asked, cards = int(text), torch.cuda.device_count()
    if cards and asked > cards:
        raise UserError(f"{PROCESSES} is {asked} and this machine has {cards} cards: give at most {cards}")
    most = max(1, min(section.micro_batches(phase.sequence_length) for phase in section.phases))
    if asked > most:
        print(
            f"{stage}: {most} of {asked} processes are used, as a step has {most} micro-batches (a lower "
            f"{stage}.micro_batch makes more of them)",
            file=sys.stderr,
        )
    return min(asked, most)


def _follow(run: Run) -> None:
    """Compute what rank 0 was given; never returns."""
    context = _tell(None)
    if context is not None:
        context.progress = context.metrics = _Nobody()
        try:
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                run(context)
        except Exception:
            time.sleep(SECONDS_FOR_THE_OTHER)  # if rank 0 met the same, this process ends with it
            raise
        except SystemExit:
            pass  # stopped by a signal: rank 0 says so
    sys.exit(0)


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


def _end_together(main: Callable[[], None]) -> None:
    """Call ``main``, which ends with ``SystemExit``. After a fault the others may wait for this process in a
    collective, so that it leaves without any: they notice, or are ended by who started them.
    """
    try:
        main()
    except SystemExit as end:
        if not end.code:
            if dist.is_initialized():
                dist.destroy_process_group()  # or its threads abort the process as Python ends
            raise
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else 1
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    except BaseException as error:
        if isinstance(error, RuntimeError) and any(words in str(error) for words in PARTED):
            time.sleep(SECONDS_FOR_THE_OTHER)  # the watch, if there is one, ends this process before
            print("another process of this run has ended", file=sys.stderr, flush=True)
        else:
            traceback.print_exc()
        status = 1
    _leave(status)


def _leave(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _watch(stage: str, others: list[subprocess.Popen], over: threading.Event) -> None:
    """End this process where another one ended by a fault: it may wait for that for ever."""
    while not (failed := [other for other in others if other.poll()]):
        if over.wait(SECONDS_BETWEEN_LOOKS):
            return
    status = failed[0].returncode
    if status > 0:  # it has said why
        _leave(1)
    print(
        f"{stage}: another process of this run was ended by signal {-status}; start it again to go on",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    # By a signal, too, which who started this goes by: a killed stage is worth another try.
    os.kill(os.getpid(), signal.SIGKILL)
