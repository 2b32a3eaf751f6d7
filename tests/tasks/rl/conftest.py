"""A small checkpoint with random weights, and engines that serve it in processes of their own."""

import os
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
sys.path += [str(ROOT / "tests/model/chat"), str(ROOT / "tests/model/inference")]

from saying_model import CONTEXT, SHAPE, SHARP, one_that_says  # noqa: E402
from small_tokenizer import train_tokenizer  # noqa: E402

from model.chat.files import save_chat_files  # noqa: E402
from model.chat.tokenizer import Tokenizer  # noqa: E402
from model.config import preset  # noqa: E402
from model.hub import load_folder, save_folder  # noqa: E402
from model.transformer import Transformer  # noqa: E402
from tasks.rl.engines.pool import EnginePool  # noqa: E402

BUCKET = 16_384  # bytes: a handful of buckets hold the weights


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    train_tokenizer(folder, tags_are_special=False)
    vocabulary = Tokenizer.load(folder).vocab_size
    config = preset("tiny").model_copy(update={**SHAPE, "vocab_size": vocabulary})
    save_folder(Transformer(config, seed=3, indexer=True), folder)
    save_chat_files(folder, CONTEXT)
    return folder


@pytest.fixture(scope="session")
def guesser(tmp_path_factory) -> Path:
    """A checkpoint that answers "yes" or "no" without thinking, each about as often, whatever the question:
    the next token follows from the present one, so that rewards differ within a group and there is something
    to learn.
    """
    return one_that_says(
        tmp_path_factory.mktemp("guesser"),
        [["</think>", "yes", "<|user|>"], ["</think>", "no", "<|user|>"]],
    )


@pytest.fixture(scope="session")
def shell_user(tmp_path_factory) -> Path:
    """A checkpoint that calls ``bash`` with ``echo *``, or else says "fin", each about as often."""
    call = ["<tool_call>", "bash", "<arg_key>", "cmd", "</arg_key>", "<arg_value>", "echo *"]
    return one_that_says(
        tmp_path_factory.mktemp("shell_user"),
        [
            ["</think>", *call, "</arg_value>", "</tool_call>", "<|observation|>"],
            ["</think>", "fin", "<|user|>"],
        ],
        context=1024,
        sharpness=SHARP,
    )


@pytest.fixture(scope="session")
def tokenizer(checkpoint) -> Tokenizer:
    return Tokenizer.load(checkpoint)


@pytest.fixture(scope="module")
def engines(checkpoint, tmp_path_factory):
    """Two engines for all tests of a file: starting them is most of what a test costs."""
    before, threads = os.environ.get("PYTHONPATH", ""), torch.get_num_threads()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), before])
    torch.set_num_threads(1)
    scratch = tmp_path_factory.mktemp("engines")
    options = {"threads": 1, "record_experts": True, "bucket_bytes": BUCKET}
    with EnginePool(checkpoint, count=2, scratch=scratch, **options) as made:
        yield made
    torch.set_num_threads(threads)
    os.environ["PYTHONPATH"] = before


@pytest.fixture
def pool(engines, checkpoint):
    """Both alive, with the checkpoint's own weights."""
    engines.look_after()
    if engines.version:
        engines.push(load_folder(checkpoint), engines.version + 1)
    return engines
