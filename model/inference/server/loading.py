"""From a checkpoint folder to an engine that answers."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from model.chat.tokenizer import Tokenizer
from model.hub import load_folder
from model.inference.async_engine import AsyncEngine
from model.inference.engine import Engine
from model.inference.server.checkpoints import Loaded
from model.inference.server.limits import Limits


def named_folders(words: list[str]) -> dict[str, Path]:
    """``NAME=FOLDER`` words as folders by name. Raises ``ValueError`` for anything else."""
    folders = {}
    for word in words:
        name, sign, folder = word.partition("=")
        if not (name and sign and folder):
            raise ValueError(f"{word!r} does not name a checkpoint; write NAME=FOLDER")
        if not (Path(folder) / "config.json").exists():
            raise ValueError(f"{folder} is no checkpoint folder: it has no config.json")
        folders[name] = Path(folder)
    return folders


def opener(device: str, limits: Limits) -> Callable[[str, Path], Awaitable[Loaded]]:
    """``open_checkpoint`` for a server with these limits."""

    async def open_named(name: str, folder: Path) -> Loaded:
        return await open_checkpoint(name, folder, device, limits.sequences)

    return open_named


async def open_checkpoint(name: str, folder: Path, device: str, sequences: int = 1) -> Loaded:
    """Load a folder, without keeping the event loop from its other work, and start an engine on it.

    ``sequences``: how many may wait. Raises ``OSError`` and ``ValueError`` for a folder that cannot be read.
    """
    return await asyncio.to_thread(_open, name, folder, device, sequences)


def _open(name: str, folder: Path, device: str, sequences: int) -> Loaded:
    tokenizer = Tokenizer.load(folder)
    model = load_folder(folder, device=device)
    engine = Engine(model, tokenizer=tokenizer)
    return Loaded(name, AsyncEngine(engine), tokenizer, model.config.max_positions)
