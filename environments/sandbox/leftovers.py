"""Containers carry a label that says which process started them; those of dead processes are removed."""

import os
import socket
from pathlib import Path

import docker
import docker.errors

OWNER_LABEL = "glm5.sandbox.owner"


def owner(pid: int | None = None) -> str:
    """This process (or another one), told apart from a later one with its number and from other hosts'."""
    pid = pid or os.getpid()
    return f"{_host()}/{pid}/{_started(pid)}"


def remove_leftovers(api: docker.APIClient) -> int:
    """Remove the containers whose process on this host has ended; how many there were."""
    removed = 0
    for container in api.containers(all=True, filters={"label": OWNER_LABEL}):
        host, pid, started = container["Labels"][OWNER_LABEL].rsplit("/", 2)
        if host != _host() or _started(int(pid)) == started:
            continue  # another host's, or its process lives
        try:
            api.remove_container(container["Id"], force=True, v=True)
            removed += 1
        except docker.errors.APIError:
            pass  # another process is removing it
    return removed


def _host() -> str:
    """The host and the name space of process numbers, which a container has of its own."""
    return f"{socket.gethostname()}/{os.readlink('/proc/self/ns/pid')}"


def _started(pid: int) -> str:
    """When a process started, in ticks since the host did; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""
