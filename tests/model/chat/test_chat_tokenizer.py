"""Encoding, decoding, and that no text makes a special token."""

import json
import random

import pytest
from random_dialogues import text

from model.chat.tokenizer import TextDecoder, Tokenizer
from model.config import SPECIAL_TOKENS


def test_special_tokens_follow_the_ordinary_ones_in_order(tokenizer):
    first = tokenizer.vocab_size - len(SPECIAL_TOKENS)
    assert [tokenizer.ids_by_name[name] for name in SPECIAL_TOKENS] == list(
        range(first, tokenizer.vocab_size)
    )


def test_text_never_becomes_a_special_token_and_decodes_to_itself(tokenizer):
    rng = random.Random("encode")
    texts = [
        *SPECIAL_TOKENS,
        "a<think>b</think>",
        " <|user|> ",
        *(text(rng, forged=True) for _ in range(500)),
    ]
    for string in texts:
        ids = tokenizer.encode(string)
        assert not tokenizer.names_by_id.keys() & set(ids)
        assert tokenizer.decode(ids) == string
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(string) for string in texts]


def test_decoding_agrees_with_the_tokenizers_library(tokenizer, folder):
    from tokenizers import Tokenizer as Library

    library, rng = Library.from_file(str(folder / "tokenizer.json")), random.Random("decode")
    plain = tokenizer.vocab_size - len(SPECIAL_TOKENS)
    for _ in range(300):  # random ids: mostly bytes that are not UTF-8
        ids = [rng.randrange(plain) for _ in range(rng.randrange(20))]
        assert tokenizer.decode(ids) == library.decode(ids, skip_special_tokens=False)
    assert tokenizer.decode(list(tokenizer.ids_by_name.values())) == "".join(SPECIAL_TOKENS)


def test_decoding_token_by_token_gives_whole_characters(tokenizer):
    ids, decoder = tokenizer.encode("思🙂é"), TextDecoder()
    pieces = [decoder.feed(tokenizer.token_bytes(token_id)) for token_id in ids]
    assert "".join(pieces) == "思🙂é" and len(ids) > 3
    assert "\ufffd" not in "".join(pieces)
    decoder.feed("🙂".encode()[:2])
    assert decoder.flush() == "\ufffd" and decoder.feed(b"a") == "a"


def test_an_id_behind_the_vocabulary_is_shown_as_unknown(tokenizer):
    a = tokenizer.encode("a")
    assert tokenizer.decode([*a, tokenizer.vocab_size, tokenizer.vocab_size + 7, *a]) == "a\ufffd\ufffda"


def test_bad_input_is_named(tokenizer, folder, tmp_path):
    with pytest.raises(ValueError, match="lone surrogate"):
        tokenizer.encode("a\ud800")
    with pytest.raises(ValueError, match="lone surrogate"):
        tokenizer.encode_batch(["fine", "a\ud800"])
    with pytest.raises(ValueError, match="token id -1 is negative"):
        tokenizer.decode([-1])
    (tmp_path / "tokenizer.json").write_text("{broken")
    with pytest.raises(ValueError, match=f"{tmp_path}.*not a tokenizer.json"):
        Tokenizer.load(tmp_path)
    definition = json.loads((folder / "tokenizer.json").read_text())
    definition["added_tokens"] = definition["added_tokens"][:-1]
    with pytest.raises(ValueError, match=r"lacks the special tokens <\|code_suffix\|>"):
        Tokenizer(json.dumps(definition))
