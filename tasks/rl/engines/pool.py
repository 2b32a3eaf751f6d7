"""The rollout engines of a run: servers in processes of their own, kept alive, all with the newest weights.

    with EnginePool(folder, count=2, scratch=scratch, threads=1) as pool:
        pool.push(model, version=1)
        pool.look_after()          # between steps: starts again what has died or hangs

Who uses them reads ``engines.json``: names and addresses of those that are alive and have the newest weights.
"""

import asyncio
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import aiohttp
import torch

from model.inference.buckets import BUCKET_BYTES, write_buckets
from model.inference.weights import state_for_inference
from model.transformer import Transformer
from pipeline.errors import UserError
from pipeline.files import write_whole
from tasks.rl.engines.client import EngineClient, EngineDied
from tasks.rl.engines.memory import shared_folder, sweep
from tasks.rl.engines.process import Child
from tasks.rl.engines.pulse import Pulse

SECONDS_TO_START = 300.0
MOST_STARTS = 5  # of one engine, beyond its first: one that dies again and again is a fault, not bad luck
ADDRESS = re.compile(r"API: (http://\S+)/v1")
FILE = "engines.json"


class EnginePool:
    def __init__(
        self,
        checkpoint: Path,
        *,
        count: int,
        scratch: Path,
        threads: int,
        decode: str | None = None,
        record_experts: bool = False,
        bucket_bytes: int = BUCKET_BYTES,
    ):
        """``checkpoint``: a folder that all start from, tokenizer included. ``threads`` of each, on a CPU.
        ``bucket_bytes``: of a bucket of weights, at most (a larger tensor goes alone); several are on their
        way at once.
        """
        self.scratch, self.checkpoint = scratch, checkpoint
        scratch.mkdir(parents=True, exist_ok=True)
        self.record_experts, self._bucket_bytes = record_experts, bucket_bytes
        self._weights = checkpoint  # the newest
        self._version, self._checksum = 0, ""
        self._pulse = Pulse(lambda: dict(self._addresses))
        self._addresses: dict[str, str] = {}
        cards, own = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
        self._device = "cuda" if cards else "cpu"
        options = ["--port", "0", "--device", self._device]
        options += ["--decode", decode] if decode else []
        options += ["--record-experts"] if record_experts else []
        self._children = {
            name: Child(
                name, [sys.executable, "-m", "model.inference.server", f"policy={checkpoint}", *options],
                scratch / "logs" / f"{name}.log",
                {"OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": visible_card(number, cards, own)},
            )
            for number, name in enumerate(f"engine-{number}" for number in range(count))
        }  # fmt: skip

    @property
    def addresses(self) -> dict[str, str]:
        return dict(self._addresses)

    @property
    def version(self) -> int:
        """Of the newest weights."""
        return self._version

    @property
    def pids(self) -> dict[str, int]:
        return {name: child.pid for name, child in self._children.items()}

    def start(self) -> None:
        """Start all of them and wait until they answer. Raises ``UserError`` with the last words of one that
        does not.
        """
        sweep()
        for child in self._children.values():
            child.start()
        for name, child in self._children.items():
            if not self._answers(name):
                raise UserError(f"a rollout engine does not start: {child.last_words()}")
        self._tell()
        self._pulse.start()

    def push(self, model: Transformer, version: int) -> None:
        """Give all engines the model's weights.

        The weights are written once, in buckets, to memory where there is a folder for that; each engine
        checks what it read against the sums. One that does not answer by the deadline, or has died, is ended,
        and ``look_after`` starts it again with these. One that refuses them, as a bucket was damaged, gets
        them once more; raises ``UserError`` where it refuses again.
        """
        before = self._weights
        self._write(model, version)
        refused = asyncio.run(self._load(list(self._addresses)))
        if refused:
            print(f"weights are sent once more: {_told(refused)}", flush=True)
            self._write(model, version)
            refused = asyncio.run(self._load(list(refused)))
        if refused:
            raise UserError(f"the engines do not take version {version} of the weights: {_told(refused)}")
        if before != self.checkpoint:
            shutil.rmtree(before, ignore_errors=True)
        self._tell()

    def look_after(self) -> list[str]:
        """Start again what has died or hangs. Returns the names. What dies again as it starts is dead at the
        next call. Raises ``UserError`` for one that keeps dying.
        """
        for name in [name for name in self._addresses if self._pulse.is_silent(name)]:
            print(f"{name} gives no sign of life and is ended", flush=True)
            self._children[name].kill()
        dead = [name for name, child in self._children.items() if not child.alive]
        for name in dead:
            child = self._children[name]
            self._addresses.pop(name, None)
            if child.starts > MOST_STARTS:
                raise UserError(f"{name} has died {child.starts} times; the last time {child.last_words()}")
        if dead:
            self._tell()
            for name in dead:
                self._children[name].start()
            for name in dead:
                self._pulse.begin_anew(name)
            started = [name for name in dead if self._answers(name)]
            if self._version and (refused := asyncio.run(self._load(started))):
                raise UserError(f"engines refuse the weights that others took: {_told(refused)}")
            self._tell()
        return dead

    def stop(self) -> None:
        for child in self._children.values():
            child.stop()
        self._pulse.stop()
        self._addresses.clear()
        self._tell()
        shutil.rmtree(shared_folder(self.scratch), ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error) -> None:
        self.stop()

    def _write(self, model: Transformer, version: int) -> None:
        folder = shared_folder(self.scratch) / f"version-{version}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        state = state_for_inference(model, self._device)
        self._checksum = write_buckets(state, folder, version, self._bucket_bytes)
        self._weights, self._version = folder, version

    async def _load(self, names: list[str]) -> dict[str, str]:
        """Why engines refused the weights, by their names; those that died are ended."""
        async with aiohttp.ClientSession() as http:
            faults = await asyncio.gather(*(self._load_one(name, http) for name in names))
        return {name: fault for name, fault in zip(names, faults, strict=True) if fault}

    async def _load_one(self, name: str, http: aiohttp.ClientSession) -> str | None:
        client = EngineClient(self._addresses[name], http)
        try:
            await client.load_weights(self._weights, self._version, self._checksum)
            if (version := await client.version()) != self._version:
                raise EngineDied(f"{name} says that it has version {version}, not {self._version}")
        except EngineDied as error:
            print(f"{name} did not take the weights and is started again: {error}", flush=True)
            self._children[name].kill()
            self._addresses.pop(name, None)
        except ValueError as error:
            return str(error)
        return None

    def _answers(self, name: str) -> bool:
        """Wait for an engine that was started, and note its address; False where it died instead."""
        child, deadline = self._children[name], time.monotonic() + SECONDS_TO_START
        while not (found := ADDRESS.search(child.printed())):
            if not child.alive:
                return False
            if time.monotonic() > deadline:
                raise UserError(f"{name} did not answer in {SECONDS_TO_START:.0f} s: look at {child.log}")
            time.sleep(0.05)
        self._addresses[name] = found[1]
        return True

    def _tell(self) -> None:
        """Write ``engines.json``, whole or not at all."""
        told = {"version": self._version, "engines": self._addresses}
        write_whole(self.scratch / FILE, json.dumps(told))


def _told(refused: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in refused.items())


def visible_card(number: int, cards: int, visible: str | None) -> str:
    """CUDA_VISIBLE_DEVICES of an engine: engines share the cards in turns, and where there are several the
    first is the trainer's. ``visible``: this process's own value, whose cards alone are used.
    """
    if not cards:
        return ""
    names = visible.split(",") if visible else [str(card) for card in range(cards)]
    return names[0] if cards == 1 else names[1 + number % (cards - 1)]
