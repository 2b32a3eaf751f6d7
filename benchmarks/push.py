"""How long new weights take from the trainer to an engine: the push as reinforcement learning does it, and
its parts in this process.

    python -m benchmarks.push --checkpoint artifacts/small/sft --out benchmarks/results/push.json

Seconds of each push, the first included. The parts: ``write`` copies to the host, serialises, hashes and
writes; ``read`` hashes again and opens; ``copy`` takes the tensors over into a model on the device. Beside
them what one thread hashes, in GB/s.
"""

import argparse
import hashlib
import json
import os
import tempfile
import time
import zlib
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch

from benchmarks.quantization import machine
from model.inference.buckets import read_buckets, write_buckets
from model.inference.weights import copy_state, state_for_inference
from model.transformer import Transformer
from pipeline.errors import run_command
from tasks.rl.engines.memory import MEMORY
from tasks.rl.engines.pool import EnginePool
from tasks.training.ranks import pick_device
from tasks.training.setup import load_model

HASHES: dict[str, Callable[[bytes], object]] = {
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "blake2b": lambda data: hashlib.blake2b(data).digest(),
    "crc32": zlib.crc32,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--pushes", type=int, default=4)
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    options = parser.parse_args()
    device = pick_device()
    model = load_model(options.checkpoint, device)
    result = {
        "date": date.today().isoformat(), "machine": machine(device.type), "torch": torch.__version__,
        "cores": len(os.sched_getaffinity(0)), "engines": options.engines,
        "bytes": sum(tensor.nbytes for tensor in state_for_inference(model, device.type).values()),
        "hash_gb_per_s": hash_rates(), "parts_seconds": parts(model, options.pushes),
    }  # fmt: skip
    result["push_seconds"] = pushes(model, options.checkpoint, options.engines, options.pushes)
    print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def hash_rates() -> dict[str, float]:
    data = os.urandom(1 << 28)
    rates = {}
    for name, run in HASHES.items():
        rates[name] = round(len(data) / seconds(run, data) / 1e9, 2)
    return rates


def parts(model: Transformer, times: int) -> dict[str, list[float]]:
    """Each part of a push, ``times`` times."""
    found: dict[str, list[float]] = {"write": [], "read": [], "copy": []}
    state = state_for_inference(model, model.embed.weight.device.type)
    for version in range(times):
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
            folder = Path(name)
            found["write"].append(seconds(write_buckets, state, folder, version))
            found["read"].append(seconds(read_buckets, folder, version, None))
            found["copy"].append(seconds(copy_state, model, read_buckets(folder, version, None)))
    return {name: [round(value, 2) for value in values] for name, values in found.items()}


def pushes(model: Transformer, checkpoint: Path, engines: int, times: int) -> list[float]:
    with tempfile.TemporaryDirectory() as scratch:
        threads = max(1, len(os.sched_getaffinity(0)) // (engines + 1))
        with EnginePool(checkpoint, count=engines, scratch=Path(scratch), threads=threads) as pool:
            return [round(seconds(pool.push, model, version), 2) for version in range(1, times + 1)]


def seconds(run: Callable[..., object], *arguments: object) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    run(*arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    run_command(main)
