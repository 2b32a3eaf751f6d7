"""The tokenizer of the chat tests, with the flags of GLM's release."""

import pytest
from small_tokenizer import train_tokenizer

from model.chat.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(folder, tags_are_special=False)
    return folder


@pytest.fixture(scope="session")
def tokenizer(folder) -> Tokenizer:
    return Tokenizer.load(folder)
