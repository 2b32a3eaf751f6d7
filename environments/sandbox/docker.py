"""Sandboxes as Docker containers, for any engine that answers (``DOCKER_HOST``), local or remote.

Limits are the engine's own. The one for the disk is, where its storage driver has quotas (btrfs, zfs,
overlay2 on xfs with pquota); elsewhere a watch ends all processes of a sandbox that wrote more
(``disk_watch``).
"""

import asyncio
import concurrent.futures
import os
import threading
from collections import defaultdict, deque
from pathlib import Path

import docker
import docker.errors
import requests

from environments.sandbox.container import Container
from environments.sandbox.disk_watch import DiskWatch
from environments.sandbox.dockerfile import read_dockerfile
from environments.sandbox.engine import Engine, one_line
from environments.sandbox.files import digest, read_folder
from environments.sandbox.interface import Backend, Image, ImageError, Limits
from environments.sandbox.leftovers import OWNER_LABEL, owner, remove_leftovers
from pipeline.errors import UserError

BUILD_SECONDS = 600  # without a word of the build
BUILD_LIMITS = {"memory": 4 * 2**30, "memswap": 4 * 2**30}
OPEN_FILES = 1024
TAIL_LINES = 3  # of a build's output, in the sentence that says why it failed

# Process 1: no signal from inside ends it, it takes off the children of others that ended, and it starts
# nothing that could fail where the limit of processes is reached. Its input never ends.
KEEPER = ["/bin/sh", "-c", "trap '' INT CHLD; while :; do read -r line; done"]


def docker_backend() -> "DockerBackend":
    """The engine of ``DOCKER_HOST`` or of this host. Raises ``UserError`` where none is fit."""
    where = os.environ.get("DOCKER_HOST", "this host's socket")
    try:
        client = docker.from_env(max_pool_size=64)
        info = client.info()
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise UserError(
            f"no Docker engine answers at {where} ({one_line(error)}): start one or name it in DOCKER_HOST"
        ) from None
    limits = {"MemoryLimit": "memory", "CpuCfsQuota": "processor time", "PidsLimit": "processes"}
    if missing := [name for key, name in limits.items() if not info.get(key)]:
        raise UserError(f"the Docker engine at {where} cannot limit {', '.join(missing)}: use another one")
    return DockerBackend(client)


class DockerBackend(Backend):
    """Made by ``docker_backend``, which checks the engine. Containers of dead processes are removed first."""

    name = "docker"
    enforced = "memory, processes and CPU by the engine, disk by its quotas or, without those, a watch"

    def __init__(self, client: docker.DockerClient) -> None:
        self.engine = Engine(client.api)
        self._quota = True  # until the engine says that it has none
        self._driver = client.info()["Driver"]
        self._network = "default" if client.networks.list(names=["bridge"]) else "host"
        self._watch = DiskWatch(client.api)
        self._building: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        remove_leftovers(client.api)

    async def build(self, folder: Path) -> Image:
        return await self.engine.call(self._build, Path(folder))

    async def start(self, image: Image, limits: Limits) -> Container:
        started = self.engine.submit(self._start, image, limits)
        try:
            identity = await asyncio.wrap_future(started)
        except asyncio.CancelledError:
            started.add_done_callback(self._remove_unwanted)
            raise
        if not self._quota:
            self._watch.add(identity, limits.disk_mb)
        return Container(self.engine, identity, image, limits, self._watch)

    def _build(self, folder: Path) -> Image:
        read_dockerfile(folder)  # what the engine would take and we do not is refused
        try:
            tag = f"glm5-sandbox:{digest(read_folder(folder))[:24]}"
        except OSError as error:
            raise ImageError(
                f"{folder}: no image can be built: {error.strerror} ({error.filename})"
            ) from None
        with self._building[tag]:
            try:
                details = self.engine.api.inspect_image(tag)
            except docker.errors.ImageNotFound:
                self._build_new(folder, tag)
                details = self.engine.api.inspect_image(tag)
        config = details["Config"]
        environment = dict(pair.split("=", 1) for pair in config.get("Env") or ())
        return Image(tag, config.get("WorkingDir") or "/", environment, config.get("User") or "root")

    def _build_new(self, folder: Path, tag: str) -> None:
        step, tail = "", deque(maxlen=TAIL_LINES)
        try:
            events = self.engine.api.build(
                path=str(folder), tag=tag, rm=True, forcerm=True, decode=True, timeout=BUILD_SECONDS,
                network_mode=self._network, container_limits=BUILD_LIMITS,
            )  # fmt: skip
            for event in events:
                text = event.get("stream", "").strip()
                if text.startswith("Step "):
                    step = text.partition(" : ")[2]
                elif text and not text.startswith(("--->", "Removing intermediate container")):
                    tail.append(text)
                if "error" in event:
                    raise ImageError(_why(folder, step, event["error"], tail))
        except docker.errors.APIError as error:
            raise ImageError(_why(folder, step, error.explanation or error, tail)) from None
        except requests.exceptions.Timeout:
            raise ImageError(_why(folder, step, f"nothing came for {BUILD_SECONDS} seconds", tail)) from None

    def _start(self, image: Image, limits: Limits) -> str:
        api = self.engine.api
        try:
            identity = self._create(image, limits)
        except docker.errors.APIError as error:
            if not self._quota or "storage" not in str(error.explanation).lower():
                raise
            self._quota = False
            identity = self._create(image, limits)
        try:
            api.start(identity)
        except BaseException:
            api.remove_container(identity, force=True, v=True)
            raise
        return identity

    def _create(self, image: Image, limits: Limits) -> str:
        api, memory, disk = self.engine.api, limits.memory_mb * 2**20, limits.disk_mb * 2**20
        ulimits = {"nofile": OPEN_FILES, "core": 0}
        host = api.create_host_config(
            network_mode="none", mem_limit=memory, memswap_limit=memory, nano_cpus=int(limits.cpus * 1e9),
            pids_limit=limits.processes, cap_drop=["ALL"], security_opt=["no-new-privileges"],
            ulimits=[docker.types.Ulimit(name=name, soft=size, hard=size) for name, size in ulimits.items()],
            storage_opt={"size": str(disk + self._shared(image))} if self._quota else None,
        )  # fmt: skip
        return api.create_container(
            image.name, entrypoint=KEEPER, command=[], user="0", working_dir="/", hostname="sandbox",
            stdin_open=True, host_config=host, labels={OWNER_LABEL: owner()}, healthcheck={"test": ["NONE"]},
        )["Id"]  # fmt: skip

    def _shared(self, image: Image) -> int:
        """The bytes of an image that its driver counts as the container's: btrfs does so."""
        return self.engine.api.inspect_image(image.name)["Size"] if self._driver == "btrfs" else 0

    def _remove_unwanted(self, started: concurrent.futures.Future[str]) -> None:
        """Remove a container that nobody waits for any more."""
        if not started.cancelled() and not started.exception():
            self.engine.submit(self.engine.api.remove_container, started.result(), force=True, v=True)


def _why(folder: Path, step: str, error: object, tail: deque[str]) -> str:
    """One sentence about a build that failed."""
    where = f" at {one_line(step)!r}" if step else ""
    last = f" (last words: {one_line(' / '.join(tail))!r})" if tail else ""
    return f"{folder}: the image cannot be built{where}: {one_line(error)}{last}"
