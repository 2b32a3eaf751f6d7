"""Weights on their way to engines of this machine: a state dict in files of bounded size, with their sums.

    folder/00000.safetensors    a bucket: tensors under the names of ``model.state_dict()``
    folder/buckets.json         the version, and of each bucket its file, SHA-256 and tensors

An engine verifies every bucket before it takes over the first, and meanwhile goes on sampling; then it copies
tensor by tensor out of the files, so that no second model stands in its memory. Buckets are written and
verified several at a time: copies and hashes run outside of the interpreter's lock.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

MANIFEST = "buckets.json"
BUCKET_BYTES = 64 << 20
AT_ONCE = 8  # buckets on their way, at most


def write_buckets(
    state: Mapping[str, torch.Tensor], folder: Path, version: int, bucket_bytes: int = BUCKET_BYTES
) -> str:
    """Write a state dict into an existing folder. Returns the SHA-256 of ``buckets.json``, which stands for
    all of it.
    """

    def write(number: int, names: list[str]) -> dict[str, str | list[str]]:
        data = save({name: state[name].detach().cpu().contiguous() for name in names})
        file = f"{number:05d}.safetensors"
        (folder / file).write_bytes(data)
        return {"file": file, "sha256": hashlib.sha256(data).hexdigest(), "tensors": names}

    buckets = list(_filled(state, bucket_bytes))
    with _threads() as pool:
        rows = list(pool.map(write, range(len(buckets)), buckets))
    text = json.dumps({"version": version, "buckets": rows})
    (folder / MANIFEST).write_text(text)
    return hashlib.sha256(text.encode()).hexdigest()


def read_buckets(
    folder: Path, version: int, checksum: str | None, deadline: float | None = None
) -> "BucketState":
    """The state dict of a folder, verified bucket by bucket.

    Raises ``OSError``, and ``ValueError`` for a damaged bucket, another version or sum than are expected, and
    once ``deadline`` (``time.monotonic``) has passed.
    """
    text = (folder / MANIFEST).read_bytes()
    if checksum is not None and (found := hashlib.sha256(text).hexdigest()) != checksum.lower():
        raise ValueError(f"the checksum of {folder / MANIFEST} is {found}, not {checksum}: send them again")
    try:
        manifest = json.loads(text)
        there, rows = manifest["version"], [(row["file"], row["sha256"]) for row in manifest["buckets"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / MANIFEST} lists no buckets ({error!r}): send them again") from error
    if there != version:
        raise ValueError(f"{folder} holds version {there}, not {version}")
    read: list[safe_open] = []

    def verified(row: tuple[str, str]) -> safe_open:
        in_time(deadline, f"{len(read)} of {len(rows)} buckets were read")
        name, expected = row
        file = _open(folder / name)
        with open(folder / name, "rb") as data:
            found = hashlib.file_digest(data, "sha256").hexdigest()
        if found != expected:
            raise ValueError(f"bucket {name} is damaged (checksum {found}, not {expected}): send it again")
        return file

    with _threads() as pool:
        for file in pool.map(verified, rows):
            read.append(file)
    return BucketState({key: file for file in read for key in file.keys()})


def in_time(deadline: float | None, state: str) -> None:
    """Raises ``ValueError`` where the sender waits no longer: what it gave up must not be taken over."""
    if deadline is not None and time.monotonic() > deadline:
        raise ValueError(f"the weights come too late: at their deadline {state}")


class BucketState(Mapping[str, torch.Tensor]):
    """Tensors by name, each read from its file when it is asked for."""

    def __init__(self, files: dict[str, safe_open]):
        self._files = files

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._files[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(AT_ONCE, len(os.sched_getaffinity(0))))


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"bucket {path.name} is damaged ({error}): send it again") from error


def _filled(state: Mapping[str, torch.Tensor], most: int) -> Iterator[list[str]]:
    """Names in order, as many to a bucket as fit, one at least."""
    names, size = [], 0
    for name, tensor in state.items():
        if names and size + tensor.nbytes > most:
            yield names
            names, size = [], 0
        names.append(name)
        size += tensor.nbytes
    if names:
        yield names
