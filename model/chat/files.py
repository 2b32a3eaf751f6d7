"""The files beside tokenizer.json that let transformers and vLLM speak the chat format, offline."""

import json
import shutil
from pathlib import Path

from model.chat.tokenizer import Tokenizer
from model.chat.tokens import END_OF_TEXT, STOP_TOKENS
from model.config import TOKENIZER_CONFIG

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def save_chat_files(folder: str | Path, max_positions: int) -> None:
    """Write tokenizer_config.json, chat_template.jinja and generation_config.json beside a tokenizer.json.

    ``AutoTokenizer.from_pretrained(folder)`` then works, and ``generate`` and vLLM stop at a turn's end.
    ``max_positions`` is the model's longest context in tokens. Raises ``ValueError`` where the folder has no
    tokenizer.json with GLM's special tokens.
    """
    folder = Path(folder)
    tokenizer = Tokenizer.load(folder)
    generation_config = {
        "eos_token_id": [tokenizer.ids_by_name[name] for name in STOP_TOKENS],
        "pad_token_id": tokenizer.ids_by_name[END_OF_TEXT],
    }
    tokenizer_config = {**TOKENIZER_CONFIG, "model_max_length": max_positions}
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    _write_json(folder / "generation_config.json", generation_config)
    shutil.copyfile(CHAT_TEMPLATE, folder / CHAT_TEMPLATE.name)


def _write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
