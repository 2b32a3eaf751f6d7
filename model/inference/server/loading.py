"""From a checkpoint folder to an engine that answers."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import torch

from model.chat.tokenizer import Tokenizer
from model.hub import load_folder
from model.inference.async_engine import AsyncEngine
from model.inference.decode import DecodeMode
from model.inference.engine import Engine
from model.inference.server.checkpoints import Loaded
from model.inference.weights import for_inference


def named_folders(words: list[str]) -> dict[str, Path]:
    """``NAME=FOLDER`` words as folders by name. Raises ``ValueError`` for anything else."""
    folders = {}
    for word in words:
        name, sign, folder = word.partition("=")
        if not (name and sign and folder):
            raise ValueError(f"{word!r} does not name a checkpoint; write NAME=FOLDER")
        folders[name] = checkpoint_folder(folder)
    return folders


def checkpoint_folder(folder: str) -> Path:
    """Raises ``ValueError`` for a folder that is not there or is no checkpoint."""
    if not (Path(folder) / "config.json").exists():
        raise ValueError(f"{folder} is no checkpoint folder: it has no config.json")
    return Path(folder)


def first_of(names: Iterable[str], wanted: str | None) -> str:
    """The checkpoint to begin with: ``wanted``, else the last. Raises ``ValueError`` for one that is none."""
    names = list(names)
    if wanted is not None and wanted not in names:
        raise ValueError(f"--first {wanted} is not among the checkpoints {', '.join(names)}")
    return wanted or names[-1]


def usable_device(word: str) -> torch.device:
    """The device of that name. Raises ``ValueError`` where PyTorch does not know it or cannot use it here."""
    try:
        device = torch.device(word)
    except RuntimeError:
        raise ValueError(f"--device {word} is no device of PyTorch's; say cpu, or cuda on a GPU") from None
    try:
        torch.ones(1, device=device).item()  # "meta" holds no numbers
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ValueError(f"--device {word} cannot be used here ({reason}); say cpu") from None
    return device


async def open_checkpoint(
    name: str, folder: Path, *, device: str = "cpu", decode: DecodeMode | None = None, **options: int
) -> Loaded:
    """Load a folder, without keeping the event loop from its other work, and start an engine on it; on CUDA
    in bfloat16, whatever is stored.

    ``decode`` and ``options`` are the engine's. Raises ``OSError`` and ``ValueError`` for a folder that
    cannot be read, and ``ValueError`` where it cannot be decoded that way.
    """
    return await asyncio.to_thread(_open, name, folder, device, decode, options)


def _open(name: str, folder: Path, device: str, decode: DecodeMode | None, options: dict[str, int]) -> Loaded:
    tokenizer = Tokenizer.load(folder)
    model = for_inference(load_folder(folder, device=device).eval())
    if tokenizer.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"{folder / 'tokenizer.json'} has {tokenizer.vocab_size} tokens and the model knows "
            f"{model.config.vocab_size}: it is another model's tokenizer; copy the folder again"
        )
    engine = Engine(model, tokenizer=tokenizer, decode=decode, **options)
    return Loaded(name, AsyncEngine(engine), tokenizer, model.config.max_positions)
