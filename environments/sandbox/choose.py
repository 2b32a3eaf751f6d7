"""Which backend is used: bubblewrap where it works, else Docker where an engine answers.

A real sandbox is started to find out, since kernels and containers forbid its parts in many ways.
"""

import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

from environments.sandbox import namespaces
from environments.sandbox.bubblewrap import Bubblewrap
from environments.sandbox.children import TOOLS, lifeline
from environments.sandbox.interface import Backend
from environments.sandbox.layers import Layers
from environments.sandbox.phase import complaint, started
from pipeline.artifacts import root
from pipeline.errors import UserError

NAMES = ("bubblewrap", "docker")
NEEDED = {"bwrap": "bubblewrap", "unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux"}
SECONDS = 20.0


def open_backend(name: str | None = None, cache: Path | None = None) -> Backend:
    """The backend of that name, else the best that works here; ``cache`` keeps images (``runs/sandbox``).

    Blocking, a fraction of a second. Raises ``UserError`` with what to install where there is none.
    """
    if name not in (None, *NAMES):
        raise UserError(f"there is no sandbox backend {name!r} (known: {', '.join(NAMES)})")
    if name == "docker":
        return _docker()
    cache = cache or root() / "runs" / "sandbox"
    reason = why_not(cache)
    if reason is None:
        return Bubblewrap(cache)
    if name == "bubblewrap":
        raise UserError(f"bubblewrap cannot be used here: {reason}")
    try:
        return _docker()
    except UserError as error:
        raise UserError(
            f"no sandbox can be started: bubblewrap cannot be used ({reason}), and {error}"
        ) from None


def why_not(cache: Path) -> str | None:
    """Why bubblewrap cannot be used on this machine, in one sentence; None where it can."""
    for program, package in NEEDED.items():
        if shutil.which(program, path=TOOLS["PATH"]) is None:
            return f"{program} is missing: install the package {package}"
    layers = Layers(cache, namespaces.owner())
    with layers.draft() as draft:
        arguments = namespaces.holder(4, [draft.name], None, network=False)
        probe = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=lifeline(),
            cwd=layers.folder, env=TOOLS, text=True, errors="replace",
        )  # fmt: skip
        timer = threading.Timer(SECONDS, probe.kill)
        timer.start()
        said = ""
        try:
            while started(said) is None and (line := probe.stdout.readline()):
                said += line
        finally:
            timer.cancel()
            if (first := started(said)) is not None:
                os.kill(first, signal.SIGKILL)  # its parent would leave it behind, killed this early
            probe.stdin.close()
            probe.wait()
            probe.stdout.close()
    if started(said) is not None:
        return None
    return f"{complaint(said)} (does the kernel, or a container around us, forbid user namespaces?)"


def _docker() -> Backend:
    from environments.sandbox.docker import docker_backend

    return docker_backend()
